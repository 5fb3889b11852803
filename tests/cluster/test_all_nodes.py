"""`vmpin status|verify --all-nodes` and the kubectl plugin at a real API server: from the objects that reporters
write, under the rights that the chart gives to viewers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import checked_output
from kube_given import NODE, entry, reported
from need import lacking

from cluster.build import Programs
from cluster.rendered import objects
from cluster.reporter_node import CLIENTS, NODES, PINNINGS, client, prepare, until
from cluster.server import DEADLINE, ApiServer
from vmpin.features.cluster.kube.node_pinning import node_pinning, pinning_update

pytestmark = pytest.mark.cluster

ZONE = "topology.kubernetes.io/zone"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
#: Of the node that is stale: twice its refresh, and some more than this test may take.
OLD = 3600.0


class Cluster:
    """An API server, and commands that read from it. :param package: the directory of the package kubernetes."""

    def __init__(self, server: ApiServer, built: Programs, package: Path, directory: Path) -> None:
        self.server, self._built, self._package, self._directory = server, built, package, directory
        command = Path(sys.executable).with_name("vmpin")
        if not command.exists():
            lacking(f"needs {command}")
        # As an installation has it, and as a link: the same program by another name.
        (directory / "kubectl-vmpin").symlink_to(command)

    def node(self, name: str, *entries: Mapping[str, Any], age: float = 0.0, reports: bool = True,
             labels: Mapping[str, str] | None = None, **node: Any) -> dict[str, Any]:
        """Its Node and its NodePinning, as its reporter writes it. :returns: the NodePinning."""
        labels = {"kata": "true", **(labels or {})}
        assert self.server.create(NODES, {"metadata": {"name": name, "labels": labels}}).code in (201, 409)
        content = node_pinning(NODE._replace(name=name, labels=labels), reported(*entries, **node), reports)
        if not age:
            content["status"]["refreshSeconds"] = 3600  # so that none is stale before these tests end
        request = pinning_update(content, time.time() - age)
        made = self.server.request(request.method, request.path, request.body, kind=request.content_type,
                                   query=dict(request.query))
        assert made.code in (200, 201), made.body
        return dict(made.body)

    def run(self, *words: str, token: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        done = self._started([sys.executable, "-m", "vmpin.cli.main", *words], {
            "KUBECONFIG": str(self.server.kubeconfig(token)), **environment})
        checked_output(words, done.stdout)
        return done

    def run_with(self, package: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """With another version of the package kubernetes."""
        return self.run(*words, PYTHONPATH=str(package))

    def kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._started([str(self._built.kubectl), *words], {"KUBECONFIG": str(self.server.kubeconfig())})

    def json(self, *words: str, token: str | None = None) -> Any:
        done = self.run(*words, "-o", "json", token=token)
        assert done.stderr == ""
        return json.loads(done.stdout)

    def _started(self, argv: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self._directory), os.environ["PATH"]])
        return subprocess.run(argv, env={"PATH": path, "HOME": str(self._directory), "PYTHONPATH": str(self._package),
                                         **environment},
                              cwd=self._directory, capture_output=True, text=True, timeout=DEADLINE, check=False)


def shop(name: str, **changes: Any) -> dict[str, Any]:
    return entry(name, pod={"namespace": "shop", "name": name, "uid": f"uid-{name}"}, **changes)


def daemon_set(built: Programs) -> dict[str, Any]:
    """The reporter's, as the chart renders it for nodes with the label kata."""
    rendered = yaml.safe_load_all(objects(built, "nodeSelector: {katacontainers.io/kata-runtime: null, kata: 'true'}"))
    (found,) = [each for each in rendered if each and each["kind"] == "DaemonSet"
                and each["metadata"]["name"] == "vmpin-reporter"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def cluster(built: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node in each state."""
    with client(CLIENTS[-1]) as package, ApiServer(built) as server:
        prepare(server)
        made = Cluster(server, built, package, tmp_path_factory.mktemp("plugin"))
        made.node("node-1", shop("web"), entry("db"), labels={ZONE: "a"})
        made.node("node-2", shop("bad", verdict="degraded", reasons=["2 vCPUs"]), labels={ZONE: "b"})
        made.node("node-10", entry("old"), age=OLD, labels={ZONE: "b"})
        made.node("node-11", reports=False, labels={ZONE: "c"})
        for name, labels in (("gone", {"kata": "true", ZONE: "a"}), ("other", {ZONE: "a"})):
            assert server.create(NODES, {"metadata": {"name": name, "labels": labels}}).code == 201
        found = server.create("/apis/apps/v1/namespaces/vmpin/daemonsets", daemon_set(built))
        assert found.code == 201, found.body
        yield made


def states(found: Any) -> dict[str, str]:
    return {each["node"]: each["state"] for each in found["nodes"]}


def test_every_node_is_shown_with_its_state(cluster: Cluster) -> None:
    done = cluster.run("status", "--all-nodes")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "5 nodes: 1 missing, 1 stale, 1 not ready, 1 degraded, 1 ok; 3 of 4 pods in VMs are in place"
    assert [line.split()[:4] for line in lines[2:7]] == [
        ["gone", "-", "missing", "-"], ["node-10", "b", "stale", "1/1"], ["node-11", "c", "not", "ready"],
        ["node-2", "b", "degraded", "0/1"], ["node-1", "a", "ok", "2/2"]]
    assert lines[8].split(maxsplit=3) == ["node-2", "shop/bad", "PinningDegraded", "2 vCPUs"]
    assert "gone is missing: it has no NodePinning" in done.stdout
    assert "sandbox-" not in done.stdout, "names of pods, not ids"
    wide = cluster.run("status", "--all-nodes", "-o", "wide").stdout
    assert "default/db" in wide
    assert "vmpin-agent: connected" in wide


def test_json_has_what_the_reporters_wrote(cluster: Cluster) -> None:
    found = cluster.json("status", "--all-nodes")
    assert states(found) == {"gone": "missing", "node-10": "stale", "node-11": "not ready", "node-2": "degraded",
                             "node-1": "ok"}
    written = cluster.server.get(f"{PINNINGS}/node-1").body["status"]
    (shown,) = [each for each in found["nodes"] if each["node"] == "node-1"]
    assert shown["pods"] == written["sandboxes"]
    assert (shown["observedAt"], shown["cpus"]) == (written["observedAt"], written["cpus"])
    assert yaml.safe_load(cluster.run("status", "--all-nodes", "-o", "yaml").stdout)["states"] == found["states"]


def test_the_oldest_client_shows_the_same(cluster: Cluster) -> None:
    with client(CLIENTS[0]) as package:
        done = cluster.run_with(package, "status", "--all-nodes")
        assert done.returncode == 0
        assert done.stdout.splitlines()[0] == cluster.run("status", "--all-nodes").stdout.splitlines()[0]
        assert cluster.run_with(package, "verify", "--node", "node-1").returncode == 0
        done = cluster.run_with(package, "status", "--context", "none")
        assert (done.returncode, "no API server is configured" in done.stderr) == (2, True)


def test_verify_distinguishes_a_node_that_cannot_be_judged_from_misplaced_threads(cluster: Cluster) -> None:
    assert cluster.run("verify", "--all-nodes").returncode == 3
    found = cluster.json("verify", "--all-nodes")
    assert (found["ok"], found["missing"], found["stale"], found["notReady"]) == (
        False, ["gone"], ["node-10"], ["node-11"])
    for name, code in (("node-1", 0), ("node-10", 3), ("node-11", 3), ("gone", 3), ("none", 3)):
        assert cluster.run("verify", "--node", name).returncode == code, name
    cluster.node("wrong", shop("web", misplaced=2), labels={"kata": "false"})
    done = cluster.run("verify", "--node", "wrong")
    assert (done.returncode, "shop/web" in done.stdout) == (1, True)
    cluster.server.request("DELETE", f"{PINNINGS}/wrong")


def test_nodes_are_chosen_by_name_and_by_label_and_pods_by_namespace(cluster: Cluster) -> None:
    assert states(cluster.json("status", "--node", "node-2")) == {"node-2": "degraded"}
    assert states(cluster.json("status", "-l", f"{ZONE}=a")) == {"gone": "missing", "node-1": "ok"}
    assert states(cluster.json("status", "-l", f"{ZONE} in (b, c),vmpin.io/ready=true")) == {
        "node-10": "stale", "node-2": "degraded"}
    nodes = {each["node"]: each for each in cluster.json("status", "--all-nodes", "-n", "shop")["nodes"]}
    assert [pod["pod"] for each in nodes.values() for pod in each.get("pods", ())] == ["bad", "web"]
    assert (nodes["node-1"]["total"], nodes["node-10"]["total"]) == (1, 0)
    done = cluster.run("status", "-l", "a in b")
    assert (done.returncode, done.stdout) == (2, "")
    done = cluster.run("status", "-l", f"{ZONE} in b")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unable to parse requirement" in done.stderr


def test_it_is_a_plugin_of_kubectl(cluster: Cluster) -> None:
    done = cluster.kubectl("vmpin", "status")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("5 nodes: ")
    assert cluster.kubectl("vmpin", "verify").returncode == 3
    assert cluster.kubectl("vmpin", "verify", "--node", "node-1", "--context", "test").returncode == 0
    assert cluster.kubectl("vmpin", "status", "--help").stdout.startswith("usage: kubectl vmpin status ")
    assert "kubectl-vmpin" in cluster.kubectl("plugin", "list").stdout


def test_a_kubeconfig_and_a_context_are_chosen_as_with_kubectl(cluster: Cluster, tmp_path: Path) -> None:
    config = json.loads(cluster.server.kubeconfig().read_text())
    config["contexts"].append({"name": "second", "context": {"cluster": "none", "user": "test"}})
    config["clusters"].append({"name": "none", "cluster": {"server": "https://127.0.0.1:1"}})
    (tmp_path / "two").write_text(json.dumps(config))
    here, absent = str(tmp_path / "two"), str(tmp_path / "absent")
    assert cluster.run("status", "--node", "node-1", "--kubeconfig", here, KUBECONFIG=absent).returncode == 0
    assert cluster.run("status", "--node", "node-1", KUBECONFIG=f"{absent}:{here}").returncode == 0
    done = cluster.run("status", "--context", "second", KUBECONFIG=here)
    assert (done.returncode, done.stdout) == (1, "")
    assert "kubectl cluster-info" in done.stderr
    assert cluster.run("verify", "--context", "second", KUBECONFIG=here).returncode == 3
    (tmp_path / "odd").write_text("{a: [")
    for words, environment in ((["--context", "third"], {"KUBECONFIG": here}), ([], {"KUBECONFIG": absent}),
                               (["--kubeconfig", str(tmp_path / "odd")], {}), ([], {"KUBECONFIG": ""})):
        done = cluster.run("status", "--all-nodes", *words, **environment)
        assert (done.returncode, done.stdout) == (2, "")
        assert "no API server is configured" in done.stderr
        assert "--kubeconfig FILE" in done.stderr


def test_in_a_pod_without_a_kubeconfig_its_service_account_is_used(cluster: Cluster) -> None:
    done = cluster.run("status", "--all-nodes", KUBECONFIG="", KUBERNETES_SERVICE_HOST="127.0.0.1",
                       KUBERNETES_SERVICE_PORT="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ervice token file does not exist" in done.stderr


# Rights


def user(cluster: Cluster, built: Programs, *roles: str) -> str:
    """Of a new service account with ClusterRoles of the chart. :returns: its token."""
    name = f"user-{'-'.join(roles) or 'none'}"
    for role in roles:
        (found,) = [each for each in yaml.safe_load_all(objects(built)) if each and each["kind"] == "ClusterRole"
                    and each["metadata"]["name"] == role]
        cluster.server.create(f"{RBAC}/clusterroles", found)
        cluster.server.create(f"{RBAC}/clusterrolebindings", {
            "metadata": {"name": f"{name}-{role}"}, "subjects": [{"kind": "ServiceAccount", "name": name,
                                                                 "namespace": "default"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}})
    return cluster.server.service_account("default", name)


def test_the_charts_role_for_verify_has_every_right_that_it_takes(cluster: Cluster, built: Programs) -> None:
    token = user(cluster, built, "vmpin-verify")
    until(lambda: cluster.run("status", "--all-nodes", token=token).returncode == 0)
    found = until(lambda: (made := cluster.json("verify", "--all-nodes", token=token))["unknown"] is None and made)
    assert found["missing"] == ["gone"]


def test_a_viewer_sees_all_that_report_and_which_right_the_rest_takes(cluster: Cluster, built: Programs) -> None:
    token = user(cluster, built, "vmpin-view")
    until(lambda: cluster.run("status", "--all-nodes", token=token).returncode == 0)
    found = cluster.json("status", "--all-nodes", token=token)
    assert states(found).keys() == {"node-1", "node-2", "node-10", "node-11"}
    assert '{apiGroups: ["apps"], resources: [daemonsets], verbs: [list]}' in found["unknown"]
    assert cluster.run("verify", "--node", "node-1", token=token).returncode == 0
    assert cluster.run("verify", "-l", f"{ZONE}=a", token=token).returncode == 3


def test_without_the_right_the_error_names_the_rule(cluster: Cluster, built: Programs) -> None:
    token = user(cluster, built)
    done = cluster.run("status", "--all-nodes", token=token)
    assert (done.returncode, done.stdout) == (1, "")
    assert "forbidden" in done.stderr
    assert '{apiGroups: ["vmpin.io"], resources: [nodepinnings], verbs: [list]}' in done.stderr
    assert cluster.run("verify", "--all-nodes", token=token).returncode == 3
    cluster.server.expire(token)
    assert "log in again" in cluster.run("status", "--all-nodes", token=token).stderr


# What another node's reporter may write


def test_hostile_and_huge_objects_are_said_and_the_others_are_shown(cluster: Cluster) -> None:
    odd = "\x1b]0;owned\x07\r\n\u202egnp.exe"
    server = cluster.server
    made = cluster.node("odd", entry("web"), labels={"kata": "false"})
    status = made["status"] | {"message": odd, "version": odd, "trouble": odd, "ready": False, "collisionCount": 1,
                               "cpus": {"online": odd, "shared": odd, "exclusive": "0-99999999"},
                               "topology": {"nodes": {"0": odd}, "caches": ["0-3", "2-5"]},
                               "collisions": [{"cpu": 2_000_000_000, "message": odd, "sandboxes": [odd]}]}
    status["sandboxes"] = [each | {"namespace": odd, "pod": odd, "state": odd, "verdict": odd, "mask": odd,
                                   "reasons": [odd] * 16, "vcpus": {"0": odd}} for each in status["sandboxes"]]
    line = {"sandbox": "s", "state": "Pinned", "verdict": "x" * 1000, "reasons": ["y" * 1000] * 16}
    contents = {"odd": status, "malformed": {"topology": {"nodes": {odd: "0"}}}}
    for name, content in contents.items():
        cluster.node(name, labels={"kata": "false"})
        done = server.request("PATCH", f"{PINNINGS}/{name}", {"status": content}, kind="application/merge-patch+json")
        assert done.code == 200, done.body
    try:
        for words in (["status", "--all-nodes"], ["status", "--all-nodes", "-o", "wide"], ["verify", "--all-nodes"],
                      ["status", "--all-nodes", "-o", "json"]):
            ran = cluster.run(*words)
            assert ran.returncode in (0, 3)
            assert ran.stderr == ""
            assert all(line.isprintable() for line in ran.stdout.split("\n")), words
        for number in range(7):  # more than a page may have
            contents[f"huge-{number}"] = {"sandboxes": [line] * 60}
            cluster.node(f"huge-{number}", labels={"kata": "false"})
            server.request("PATCH", f"{PINNINGS}/huge-{number}", {"status": contents[f"huge-{number}"]},
                           kind="application/merge-patch+json")
        found = {each["node"]: each for each in cluster.json("status", "--all-nodes")["nodes"]}
        assert (found["node-1"]["state"], found["odd"]["state"]) == ("ok", "not ready")
        assert {found[name]["state"] for name in contents if name != "odd"} == {"unreadable"}
        assert "larger than any reporter writes it" in found["huge-6"]["why"]
    finally:
        for name in contents:
            server.request("DELETE", f"{PINNINGS}/{name}")


@pytest.mark.release
def test_a_cluster_without_the_chart_is_named_so(built: Programs, cluster: Cluster, tmp_path: Path) -> None:
    with ApiServer(built) as bare:
        for verb, code in (("status", 1), ("verify", 3)):
            done = cluster.run(verb, "--all-nodes", "--kubeconfig", str(bare.kubeconfig()))
            assert (done.returncode, done.stdout) == (code, "")
            assert "vmpin's chart is not installed in this cluster" in done.stderr
