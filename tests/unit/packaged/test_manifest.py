"""config/kubernetes/vmpin.yaml and the chart it is rendered from, held against vmpin itself, without Helm.

tests/cluster/test_chart.py holds the chart's renderings against the chart."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from vmpin.cli.verbs import verb_modules
from vmpin.config import loading
from vmpin.config.settings import BY_KEY, SETTINGS, Config
from vmpin.daemon.reloading import FIXED
from vmpin.feature import features
from vmpin.features.cluster.kube.identifiers import MANAGER
from vmpin.features.cluster.kube.pod_events import EventReason
from vmpin.features.metrics.exporter import ExportedWatcher, Exporter
from vmpin.install import data_files
from vmpin.status.health import SourceHealth

ROOT = Path(__file__).parents[3]
CHART = data_files.path("config/helm/vmpin")
MANIFEST = list(yaml.safe_load_all(data_files.path("config/kubernetes/vmpin.yaml").read_text()))
GOLDEN = {path.stem: list(yaml.safe_load_all(path.read_text())) for path in sorted(
    (ROOT / "tests/cluster/golden").glob("*.yaml")) if not path.name.endswith(".values.yaml")}
RENDERED = {"default": MANIFEST, **GOLDEN}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
#: Keys that the chart sets by itself: its values must not.
SET = {"metrics.address", "watch.reload", "watch.status_group", "kubernetes.node", "kubernetes.kubeconfig",
       "kubernetes.startup_taint", "kubernetes.nrt",
       "kubernetes.ready_file"}


def test_the_policy_of_events_knows_every_reason_of_the_reporters() -> None:
    policies = [each for documents in RENDERED.values() for each in documents if each
                and each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"].endswith("-events")]
    assert len(policies) > 1
    for policy in policies:
        text = " ".join(each["expression"] for each in policy["spec"]["validations"])
        assert set(re.findall(r"'(\w+)'", text.partition("object.reason in [")[2])) == {*EventReason}
        assert f"object.source.component == '{MANAGER}'" in text


def version() -> str:
    """Of the release that comes next: a build stamps its own into a chart that it packs."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"]["raw-options"]
    return str(options["fallback_version"]).removesuffix(".dev0")


def named(documents: list[Any], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in documents if each["kind"] == kind and each["metadata"]["name"] == name]
    assert isinstance(found, dict)
    return found


def pod(documents: list[Any] = MANIFEST, component: str = "watcher") -> dict[str, Any]:
    found = named(documents, "DaemonSet", f"vmpin-{component}")["spec"]["template"]["spec"]
    assert isinstance(found, dict)
    return found


def container(documents: list[Any] = MANIFEST, component: str = "watcher") -> dict[str, Any]:
    (found,) = pod(documents, component)["containers"]
    assert isinstance(found, dict)
    return found


def load(documents: list[Any], tmp_path: Path, component: str = "watcher") -> Config:
    """The configuration as the container has it: its file, variables and flags."""
    file = tmp_path / "vmpin.yaml"
    file.write_text(named(documents, "ConfigMap", "vmpin")["data"]["vmpin.yaml"])
    made = container(documents, component)
    variables = {each["name"]: each.get("value", "192.0.2.7") for each in made.get("env", ())}
    if "[$(" in " ".join(made["args"]):
        variables["HOST_IP"] = "2001:db8::7"
    flags = {}
    for flag, text in zip(made["args"], made["args"][1:], strict=False):
        if flag == "--set":
            key, _, value = re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text).partition("=")
            flags[key] = value
    return loading.load(file, {name: text for name, text in variables.items() if name.startswith("VMPIN_")}, flags)


@pytest.mark.parametrize("name", RENDERED)
def test_the_configuration_is_one_of_vmpins(name: str, tmp_path: Path) -> None:
    config = load(RENDERED[name], tmp_path)
    assert config.watch.reload == "change"
    assert config.of_features["metrics"].address is not None
    if name != "watcher":
        user = pod(RENDERED[name], "reporter")["securityContext"]
        assert config.watch.status_group == str(user["runAsGroup"])


@pytest.mark.parametrize("name", RENDERED)
def test_variables_of_the_reporter_are_vmpins_keys(name: str) -> None:
    found = {each["name"] for document in RENDERED[name] if document["kind"] in ("DaemonSet", "Job")
             for made in document["spec"]["template"]["spec"]["containers"] for each in made.get("env", ())}
    assert found - {setting.variable for setting in SETTINGS} - {"HOST_IP"} == set()


@pytest.mark.parametrize("component", ["watcher", "reporter"])
def test_a_container_starts_a_verb_of_vmpins(component: str) -> None:
    assert container(component=component)["args"][0] in verb_modules()


@pytest.mark.parametrize("name", RENDERED)
@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_asks_where_the_watcher_answers_and_starts_no_program(name: str, probe: str, tmp_path: Path) -> None:
    address = load(RENDERED[name], tmp_path).of_features["metrics"].address
    asks = container(RENDERED[name])[probe]
    assert not asks.keys() & {"exec", "tcpSocket", "grpc"}
    assert address is not None
    assert asks["httpGet"]["port"] == address.port == container(RENDERED[name])["ports"][0]["containerPort"]
    if "host" in asks["httpGet"]:
        assert asks["httpGet"]["host"] == address.host == "127.0.0.1"
        assert pod(RENDERED[name])["hostNetwork"] is True
    else:  # the kubelet asks at the pod's address
        own = pod(RENDERED[name])["hostNetwork"]
        assert address.host in (("192.0.2.7", "2001:db8::7") if own else ("0.0.0.0", "::"))


@pytest.mark.parametrize(("probe", "names"), [
    ("startupProbe", {"passes"}), ("livenessProbe", {"passes"}), ("readinessProbe", {"passes", "nri"})])
def test_each_probes_path_is_answered(probe: str, names: set[str], tmp_path: Path) -> None:
    watched = SimpleNamespace(view=SimpleNamespace(config=load(MANIFEST, tmp_path)), resynced=float("-inf"),
                              source_health=lambda: [SourceHealth("nri", True, True)])
    path = container()[probe]["httpGet"]["path"]
    reply = asyncio.run(Exporter(cast(ExportedWatcher, watched)).answer(path))
    assert reply.status == 503, "no pass was made for too long"
    assert {line[3:].split()[0] for line in reply.body.decode().splitlines() if line.startswith("[")} == names


def test_versions_and_images_are_those_of_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version(), version())
    assert container()["image"] == f"vmpin:{version()}"
    assert container(component="reporter")["image"] == f"vmpin:{version()}-kubernetes"
    assert f"{chart['kubeVersion']}".startswith(">=1.30")


def test_the_capabilities_are_those_of_the_service_and_of_the_docs() -> None:
    context = container(GOLDEN["restricted"])["securityContext"]
    names = {f"CAP_{name}" for name in context["capabilities"]["add"]}
    unit = data_files.path("config/vmpin.service").read_text()
    (bounding,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    assert names == set(bounding.split())
    docs = (ROOT / "docs/kubernetes.md").read_text()
    assert {f"CAP_{name}" for name in re.findall(r"^\| `([A-Z_]+)` \|", docs, re.MULTILINE)} == names
    assert context["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize("name", RENDERED)
def test_the_watcher_has_no_token_and_the_reporter_nothing_else(name: str) -> None:
    documents = RENDERED[name]
    assert pod(documents)["automountServiceAccountToken"] is False
    assert named(documents, "ServiceAccount", "vmpin-watcher")["automountServiceAccountToken"] is False
    bound = {subject["name"] for each in documents if each["kind"].endswith("RoleBinding")
             for subject in each["subjects"]}
    assert bound <= {"vmpin-reporter", "vmpin-withdraw"}
    if name == "watcher":
        assert bound == set()
        return
    found, context = pod(documents, "reporter"), container(documents, "reporter")["securityContext"]
    assert not found.keys() & {"hostPID", "hostNetwork", "hostIPC"}
    assert (found["securityContext"]["runAsNonRoot"], context["readOnlyRootFilesystem"]) == (True, True)
    assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
    (host,) = [each["hostPath"]["path"] for each in found["volumes"] if "hostPath" in each]
    writable = [each["name"] for each in container(documents, "reporter")["volumeMounts"] if not each.get("readOnly")]
    assert writable == ["ready"]
    assert named(documents, "DaemonSet", "vmpin-reporter")["spec"]["template"]["spec"]["volumes"][0] == {
        "name": "ready", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    assert host == "/run/vmpin/status"


def rules(documents: list[Any], name: str = "vmpin-reporter") -> set[str]:
    return {f"{verb} {resource}" for rule in named(documents, "ClusterRole", name)["rules"]
            for resource in rule["resources"] for verb in rule["verbs"]}


def test_the_reporters_rights_are_these_and_those_of_an_option_only_with_it() -> None:
    plain = {"list pods", "watch pods", "patch pods/status", "get nodes", "patch nodes", "create events",
             "patch events", "create nodepinnings", "patch nodepinnings"}
    topologies = {f"{verb} noderesourcetopologies" for verb in ("get", "create", "patch")}
    assert rules(MANIFEST) == rules(GOLDEN["restricted"]) == plain
    assert rules(GOLDEN["unlimited"]) == rules(GOLDEN["everything"]) == plain | topologies
    docs = (ROOT / "docs/kubernetes.md").read_text()
    for rule in rules(GOLDEN["everything"]):
        verb, resource = rule.split()
        assert re.search(rf"^\| `{resource}` \|[^|]*\b{verb}\b", docs, re.MULTILINE), rule


def test_viewers_may_read_what_every_node_reports_and_nothing_else() -> None:
    def granted(name: str) -> set[str]:
        return {f"{verb} {resource}" for rule in named(MANIFEST, "ClusterRole", name)["rules"]
                for resource in rule["resources"] for verb in rule["verbs"]}

    labels = named(MANIFEST, "ClusterRole", "vmpin-view")["metadata"]["labels"]
    assert {f"rbac.authorization.k8s.io/aggregate-to-{role}" for role in ("view", "edit", "admin")} <= labels.keys()
    assert granted("vmpin-view") == {"get nodepinnings", "list nodepinnings", "watch nodepinnings"}
    assert granted("vmpin-verify") == {"list nodepinnings", "list daemonsets", "list nodes"}
    assert not any("aggregate" in key for key in named(MANIFEST, "ClusterRole", "vmpin-verify")["metadata"]["labels"])


@pytest.mark.parametrize("name", [name for name in RENDERED if name != "watcher"])
def test_a_policy_limits_each_write_unless_it_is_switched_off(name: str) -> None:
    documents = RENDERED[name]
    policies = [each for each in documents if each["kind"] == "ValidatingAdmissionPolicy"]
    bound = {each["spec"]["policyName"] for each in documents if each["kind"] == "ValidatingAdmissionPolicyBinding"
             and each["spec"]["validationActions"] == ["Deny"]}
    assert bound == {each["metadata"]["name"] for each in policies}
    limited = {rule["resources"][0] for each in policies for rule in each["spec"]["matchConstraints"]["resourceRules"]}
    written = {rule.split()[1] for rule in rules(documents) if rule.split()[0] in ("create", "patch", "delete")}
    assert limited == (set() if name == "unlimited" else written)
    assert all(each["spec"]["failurePolicy"] == "Fail" for each in policies)


def test_keys_of_the_chart_are_vmpins_and_it_leaves_out_none() -> None:
    """The schema of `config`."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["config"]
    keys = {f"{section}.{key}" for section, part in schema["properties"].items() for key in part["properties"]}
    assert keys == {setting.key for setting in SETTINGS} - SET
    assert all(part["additionalProperties"] is False for part in schema["properties"].values())


def test_a_rollout_follows_from_the_keys_that_take_a_restart() -> None:
    helpers = (CHART / "templates/_helpers.tpl").read_text()
    (picked,) = re.findall(r"pick \$watch ((?:\"\w+\" ?)+)", helpers)
    assert {f"watch.{key}" for key in re.findall(r"\w+", picked)} == set(FIXED)
    assert set(FIXED) <= BY_KEY.keys()
    (listed,) = re.findall(r"range \$section := list ((?:\"\w+\" ?)+)", helpers)
    of_features = {name for feature in features() for name in feature.fixed}
    assert set(re.findall(r"\w+", listed)) == of_features - SET
    (named,) = re.findall(r"Changes of (`paths`[^.]*(?:\.\w[^.]*)*) need a restart",
                          (ROOT / "docs/troubleshooting.md").read_text())
    assert set(re.findall(r"`(.*?)`", named)) == {"paths", *of_features, *FIXED}


def test_alerts_and_dashboard_of_the_chart_are_those_of_config() -> None:
    """Copies: of a link helm prints a line with each command."""
    for name in "alerts.yaml", "grafana.json":
        assert not (CHART / "files" / name).is_symlink()
        assert (CHART / "files" / name).read_bytes() == data_files.path(f"config/{name}").read_bytes()
    assert 'Files.Get "files/alerts.yaml"' in (CHART / "templates/prometheus.yaml").read_text()


def test_the_withdrawal_is_bounded_and_after_the_release_is_removed() -> None:
    """A failed hook before the removal would stop each try to uninstall; after it, Helm reports it and ends. Its pod
    needs nothing of what was removed by then."""
    job = named(GOLDEN["everything"], "Job", "vmpin-withdraw")
    hooks = [each for each in GOLDEN["everything"] if "helm.sh/hook" in (each["metadata"].get("annotations") or {})]
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in hooks} == {"post-delete"}
    spec, made = job["spec"], job["spec"]["template"]["spec"]
    assert 0 < spec["activeDeadlineSeconds"] < 300, "Helm waits for five minutes"
    assert (spec["backoffLimit"] > 0, made["terminationGracePeriodSeconds"]) == (True, 0)
    assert "volumes" not in made
    assert {"kind": "ServiceAccount", "name": made["serviceAccountName"]}.items() <= {
        "kind": hooks[0]["kind"], "name": hooks[0]["metadata"]["name"]}.items()


def tolerated(tolerations: list[dict[str, Any]], key: str, effect: str) -> bool:
    """Of a pod by the scheduler, after the API server's DefaultTolerationSeconds (k8s.io/kubernetes,
    plugin/pkg/admission/defaulttolerationseconds): that adds one where none names the key for NoExecute, whatever the
    value."""
    def covers(each: dict[str, Any], name: str) -> bool:
        return bool(each.get("key", name) == name and each.get("effect", effect) == effect)

    if key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable") and effect == "NoExecute" and not any(
            covers(each, key) for each in tolerations):
        return True
    return any(covers(each, key) and (each.get("operator") == "Exists" or each.get("value", "") == "")
               for each in tolerations)


def test_the_withdrawal_takes_the_reporters_nodes_but_none_that_is_down() -> None:
    job = named(GOLDEN["everything"], "Job", "vmpin-withdraw")["spec"]["template"]["spec"]
    reporter = pod(GOLDEN["everything"], "reporter")
    assert (job["nodeSelector"], job.get("affinity")) == (reporter["nodeSelector"], reporter.get("affinity"))
    assert reporter["tolerations"] == [{"operator": "Exists"}]
    for taint in "node-role.kubernetes.io/control-plane", "node.kubernetes.io/unschedulable", "dedicated":
        assert tolerated(job["tolerations"], taint, "NoSchedule"), taint
    for taint in "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable":
        assert tolerated(reporter["tolerations"], taint, "NoExecute")
        assert not tolerated(job["tolerations"], taint, "NoExecute"), taint


def test_one_node_that_is_down_holds_up_no_rollout_of_reporters() -> None:
    """The controller rounds the percentage up, and counts the pod of such a node as unavailable."""
    share = named(MANIFEST, "DaemonSet", "vmpin-reporter")["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"]
    assert all(-(-nodes * int(share.removesuffix("%")) // 100) > 1 for nodes in range(2, 200))
    assert int(share.removesuffix("%")) < 100


def test_a_service_of_vmpins_gives_the_pods_no_variables() -> None:
    assert {pod(component=each)["enableServiceLinks"] for each in ("watcher", "reporter")} == {False}


def test_the_image_and_the_chart_agree_on_the_reporters_user() -> None:
    (number,) = re.findall(r"^REPORTER = (\d+)$", data_files.path("config/image.py").read_text(), re.MULTILINE)
    assert pod(component="reporter")["securityContext"]["runAsUser"] == int(number)


def test_nothing_of_helms_own_is_in_the_manifest() -> None:
    text = data_files.path("config/kubernetes/vmpin.yaml").read_text()
    assert "helm.sh" not in text
    assert MANIFEST[0]["kind"] == "Namespace"
