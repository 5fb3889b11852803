"""The chart: what it renders is what is kept, a cluster takes all of it, and wrong values are refused.

The API server has no validation of pods' specs (apiserver/main.go): strict decoding finds unknown fields and wrong
types."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.build import Programs
from cluster.rendered import CHART, GOLDEN, MANIFEST, ROOT, files, objects, render
from cluster.reporter_node import PINNINGS, until
from cluster.server import MERGE, ApiServer

pytestmark = pytest.mark.cluster

VALUES = sorted(GOLDEN.glob("*.values.yaml"))
#: Of other operators: this API server has no schema of theirs.
FOREIGN = ("monitoring.coreos.com", "security.openshift.io")


def test_what_is_kept_is_what_the_chart_renders(built: Programs) -> None:
    """Write it again: PYTHONPATH=tests python -m cluster.rendered"""
    assert [str(path.relative_to(ROOT)) for path, text in files(built).items() if path.read_text() != text] == []


@pytest.mark.parametrize(("values", "reasons"), [
    ("watcher: {priviledged: true}", ["/watcher", "'priviledged' not allowed"]),
    ("watchers: {}", ["watchers"]),
    ("config: {watch: {only_this: x}}", ["/config/watch", "'only_this' not allowed"]),
    ("config: {metrics: {address: '0.0.0.0:1'}}", ["/config/metrics", "'address' not allowed"]),
    ("config: {watch: {status_group: kvm}}", ["/config/watch", "'status_group' not allowed"]),
    ("config: {kubernetes: {daemonset: a/b}}", ["/config/kubernetes", "'daemonset' not allowed"]),
    ("config: {node: {shared_pool: [0, 1]}}", ["/config/node/shared_pool", "array"]),
    ("config: {paths: {run: /var/lib/vmpin}}", ["/config/paths/run", "does not match"]),
    ("config: {paths: {run: '/run/a #b'}}", ["/config/paths/run", "does not match"]),
    ("config: null", ["'config'", "missing"]),
    ("reporter: {nrt: null}", ["/reporter", "'nrt'", "missing"]),
    ("watcher: {privileged: null}", ["/watcher", "'privileged'", "missing"]),
    ("watcher: {maxUnavailable: 0%}", ["/watcher/maxUnavailable"]),
    ("reporter: {nrt: on}", ["/reporter/nrt"]),
    ("reporter: {uid: 0}", ["/reporter/uid", "minimum"]),
    ("reporter: {startupTaint: 'a, b'}", ["/reporter/startupTaint", "does not match"]),
    ("kubelet: {directory: var/lib/kubelet}", ["/kubelet/directory", "does not match"]),
    ("config: {paths: {kubelet: /var/lib/k0s/kubelet}}", ["kubelet.directory", "/var/lib/kubelet"]),
    ("hook: {action: uninstall}", ["/hook/action", "'install'"]),
    ("image: {tag: 'a b'}", ["/image/tag", "does not match"]),
    ("tolerations: [{key: a, effects: b}]", ["/tolerations/0", "'effects' not allowed"]),
    ("policy: off", ["/policy", "object"])])
def test_a_wrong_value_is_refused_by_its_name(built: Programs, values: str, reasons: list[str]) -> None:
    done = render(built, values)
    assert (done.returncode, done.stdout) == (1, "")
    for reason in reasons:
        assert reason in done.stderr


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.name.split(".")[0])
def test_a_cluster_takes_every_object(built: Programs, server: ApiServer, values: Path) -> None:
    _take(server, objects(built, values.read_text()))


def test_a_null_is_left_out_wherever_it_stands(built: Programs, server: ApiServer) -> None:
    """The API server would read it as an empty text, which no label of a node has."""
    text = objects(built, """
        {nodeSelector: {katacontainers.io/kata-runtime: null, first: null},
         affinity: {nodeAffinity: null, podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
             {weight: 1, podAffinityTerm: {topologyKey: zone, labelSelector: null}}]}},
         config: {paths: null, watch: {only: null, nri: off}, node: {shared_pool: "0-1", housekeeping: null}}}""")
    _take(server, text)
    for each in yaml.safe_load_all(text):
        assert not re.search(r": null\b|: ~$", yaml.safe_dump(each)), each["kind"]
        if each["kind"] in ("DaemonSet", "Job"):
            spec = each["spec"]["template"]["spec"]
            assert ("nodeSelector" in spec, "nodeAffinity" in spec["affinity"]) == (False, False), each["kind"]
    assert notes(built, "nodeSelector: {first: null}").count("first") == 0
    _take(server, objects(built, "{nodeSelector: null, tolerations: null, affinity: null}"))


def test_a_text_stays_one_whatever_it_looks_like(built: Programs, server: ApiServer) -> None:
    """A number, a boolean or a comment of YAML."""
    text = objects(built, """
        {image: {pullSecrets: ["1"]}, config: {paths: null, watch: null}, hook: {action: install, directory: "/a #b"},
         watcher: {priorityClassName: "1"}, reporter: {startupTaint: "true", priorityClassName: "1"}}""")
    _take(server, text)
    assert "--hooks-dir=/a #b" in str(list(yaml.safe_load_all(text)))


def test_the_definition_is_upgraded_as_the_documentation_has_it(built: Programs) -> None:
    """Helm made an older one, whose objects stay."""
    (path,) = (CHART / "crds").iterdir()
    (command,) = [line.split() for line in (ROOT / "docs/kubernetes.md").read_text().splitlines()
                  if line.startswith("    kubectl apply") and line.endswith("config/helm/vmpin/crds/")]
    older = yaml.safe_load(path.read_text())
    (version,) = older["spec"]["versions"]
    version["additionalPrinterColumns"].pop()
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    del status["version"]
    status["message"]["maxLength"] = 10
    found = {"ready": True, "observedAt": "2026-01-01T00:00:00Z", "refreshSeconds": 300, "sandboxes": []}
    pinning = {"apiVersion": "vmpin.io/v1alpha1", "kind": "NodePinning", "metadata": {"name": "a"}, "status": found}
    with ApiServer(built) as server:
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert server.request("POST", definitions, older, query={"fieldManager": "helm"}).code == 201
        until(lambda: server.create(PINNINGS, pinning).code == 201)
        done = server.kubectl(*command[1:-1], path.parent)
        assert done.returncode == 0, done.stderr
        newer = {"status": {"version": "2", "message": "longer than ten characters"}}
        until(lambda: server.request("PATCH", f"{PINNINGS}/a", newer, kind=MERGE).code == 200)
        assert server.get(f"{PINNINGS}/a").body["status"] == {**found, **newer["status"]}


def test_a_cluster_takes_the_manifest(server: ApiServer) -> None:
    _take(server, MANIFEST.read_text())


def _take(server: ApiServer, text: str) -> None:
    server.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vmpin"}})
    documents = [each for each in yaml.safe_load_all(text)
                 if each is not None and not each["apiVersion"].startswith(FOREIGN)]
    done = server.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-",
                          stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(documents)


def test_the_alerts_and_the_dashboard_are_those_of_the_repository(built: Programs) -> None:
    text = objects(built, "{prometheusRule: {enabled: true}, dashboard: {enabled: true}, podMonitor: {enabled: true}}")
    found = {each["kind"]: each for each in yaml.safe_load_all(text) if "dashboard" in each["metadata"]["name"]
             or each["apiVersion"].startswith("monitoring")}
    expected = yaml.safe_load((ROOT / "config/alerts.yaml").read_text())
    for rule in (rule for group in expected["groups"] for rule in group["rules"]):
        del rule["annotations"]["runbook_url"]  # a relative address leads nowhere from an alert
    assert found["PrometheusRule"]["spec"] == expected
    shown = json.loads(found["ConfigMap"]["data"]["vmpin.json"])
    assert shown == json.loads((ROOT / "config/grafana.json").read_text())
    text = objects(built, "{prometheusRule: {enabled: true, runbookBase: 'https://wiki.example/vmpin/'}}")
    rules = next(each["spec"] for each in yaml.safe_load_all(text) if each["kind"] == "PrometheusRule")
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"]}
    assert links["VmpinDrift"] == "https://wiki.example/vmpin/alerts.md#vmpindrift"
    assert all(link.startswith("https://wiki.example/vmpin/alerts.md#") for link in links.values())
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True)


def test_only_keys_that_take_a_restart_roll_the_watchers_out(built: Programs) -> None:
    def annotation(values: str, component: str) -> str:
        (found,) = [each for each in yaml.safe_load_all(objects(built, values)) if each["kind"] == "DaemonSet"
                    and each["metadata"]["name"] == f"vmpin-{component}"]
        return str(found["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    plain = annotation("{}", "watcher")
    assert annotation("config: {node: {shared_pool: '0'}, log: {level: debug}, watch: {only: a}}", "watcher") == plain
    for fixed in ("paths: {cgroup: /cgroup}", "watch: {nri: off}", "watch: {kubelet: false}",
                  "watch: {births: false}", "allocate: {mode: on}", "irqs: {policy: away}", "memory: {metrics: true}",
                  "scheduling: {vcpu_class: fifo}"):
        assert annotation(f"config: {{{fixed}}}", "watcher") != plain
    assert annotation("config: {log: {level: debug}}", "reporter") != annotation("{}", "reporter")


def test_another_directory_of_the_kubelet_is_mounted_and_configured(built: Programs) -> None:
    text = objects(built, "{kubelet: {directory: /data/kubelet}, config: {paths: {kubelet: /data/kubelet}}}")
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}
    pod = found["DaemonSet", "vmpin-watcher"]["spec"]["template"]["spec"]
    assert {"name": "kubelet", "mountPath": "/data/kubelet", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "kubelet"]
    assert volume["hostPath"] == {"path": "/data/kubelet", "type": "Directory"}
    configuration = yaml.safe_load(found["ConfigMap", "vmpin"]["data"]["vmpin.yaml"])
    assert configuration["paths"] == {"kubelet": "/data/kubelet"}


def notes(built: Programs, values: str) -> str:
    done = render(built, values, "-notes")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_notes_name_a_command_and_warn_of_what_is_open(built: Programs) -> None:
    plain = notes(built, "{}")
    assert "kubectl -n vmpin rollout status daemonset/vmpin-watcher" in plain
    assert "kubectl get nodepinnings" in plain
    assert "WARNING" not in plain
    assert "NetworkPolicy" not in plain
    assert re.search(r"WARNING.*EVERY", notes(built, "policy: {enabled: false}"), re.DOTALL)
    assert "NetworkPolicy" in notes(built, "podMonitor: {enabled: true}")
    assert "needs Python" in notes(built, "hook: {action: install}")
    assert "nodepinnings" not in notes(built, "reporter: {enabled: false}")


def test_another_release_has_other_names(built: Programs) -> None:
    one, other = (_names(objects(built, "{openshift: {scc: true}}", "-name", name)) for name in ("vmpin", "second"))
    assert not one & other


def _names(text: str) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(text)}


def test_every_value_has_a_comment_or_a_name_that_kubernetes_has() -> None:
    """Of the first two levels; a section's comment counts for a section that has one."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    known = {"pullPolicy", "affinity", "priorityClassName", "resources", "podAnnotations", "labels", "enabled",
             "interval", "maxUnavailable", "directory", "seLinuxOptions"}
    for number, line in enumerate(lines):
        found = re.fullmatch(r"(?:  )?(\w+):( .*)?", line)
        if found and found[1] not in known and found[2]:
            assert lines[number - 1].lstrip().startswith("#"), line


def schema(*path: str) -> dict[str, Any]:
    found = json.loads((CHART / "values.schema.json").read_text())
    for name in path:
        found = found["properties"][name]
    assert isinstance(found, dict)
    return found


def test_the_schema_has_every_value_and_allows_no_other() -> None:
    def compare(values: dict[str, Any], part: dict[str, Any], at: str) -> None:
        if "properties" not in part:
            return
        assert part["additionalProperties"] is False, at
        assert values.keys() <= part["properties"].keys(), at
        for name, value in values.items():
            if isinstance(value, dict):
                compare(value, part["properties"][name], f"{at}/{name}")

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    compare(values, schema(), "")
    assert values.keys() == schema()["properties"].keys()
    for section in values.keys() - {"config", "nodeSelector", "tolerations", "affinity"}:
        assert values[section].keys() == schema(section)["properties"].keys(), section
