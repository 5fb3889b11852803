"""What the reporter's token may write under the chart's rules and policies, and what is refused, by an API server.

422 is a policy's answer, 403 that of the rules. That the reporter needs each rule is proved elsewhere, by running
it."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

import pytest
import yaml

from cluster.build import Programs
from cluster.rendered import objects
from cluster.server import APPLY, DEADLINE, JSON, MERGE, ApiServer, Reply

pytestmark = pytest.mark.cluster

MINE, OTHERS = "/api/v1/namespaces/default/pods/mine", "/api/v1/namespaces/default/pods/others"
EVENTS = "/api/v1/namespaces/default/events"
PINNINGS = "/apis/vmpin.io/v1alpha1/nodepinnings"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
TAINT = {"key": "vmpin.io/not-ready", "effect": "NoSchedule"}
ANOTHER = {"key": "example.com/other", "effect": "NoSchedule"}
_NAMED = {"type": "object", "required": ["name", "value"], "properties": {
    "name": {"type": "string"}, "value": {"type": "string"}}}
_QUANTITY = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
#: As noderesourcetopology-api's manifests/crd.yaml has it: no list has a type, so all are atomic.
_TOPOLOGY = {"type": "object", "required": ["zones"], "properties": {
    "topologyPolicies": {"type": "array", "items": {"type": "string"}},
    "attributes": {"type": "array", "items": _NAMED},
    "zones": {"type": "array", "items": {"type": "object", "required": ["name", "type"], "properties": {
        "name": {"type": "string"}, "type": {"type": "string"}, "parent": {"type": "string"},
        "attributes": {"type": "array", "items": _NAMED},
        "costs": {"type": "array", "items": {"type": "object", "required": ["name", "value"], "properties": {
            "name": {"type": "string"}, "value": {"type": "integer", "format": "int64"}}}},
        "resources": {"type": "array", "items": {
            "type": "object", "required": ["name", "capacity", "allocatable", "available"], "properties": {
                "name": {"type": "string"}, "capacity": _QUANTITY, "allocatable": _QUANTITY,
                "available": _QUANTITY}}}}}}}}
TOPOLOGY_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "noderesourcetopologies.topology.node.k8s.io",
                 "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"}},
    "spec": {"group": "topology.node.k8s.io", "scope": "Cluster",
             "names": {"kind": "NodeResourceTopology", "plural": "noderesourcetopologies",
                       "singular": "noderesourcetopology", "listKind": "NodeResourceTopologyList"},
             "versions": [{"name": "v1alpha2", "served": True, "storage": True, "schema": {
                 "openAPIV3Schema": _TOPOLOGY}}]}}


class Cluster:
    """Two nodes with a pod each, and the chart's rules and policies. :ivar token: the reporter's on node-a."""

    def __init__(self, server: ApiServer, rendered: str) -> None:
        self.server = server
        documents = [each for each in yaml.safe_load_all(rendered) if each is not None and each[
            "apiVersion"].startswith(("rbac.", "admissionregistration.", "apiextensions."))]
        for name in "node-a", "node-b":
            self._made("/api/v1/nodes", {"kind": "Node", "metadata": {"name": name, "labels": {"zone": "z"}},
                                         "spec": {"taints": [ANOTHER, TAINT]}})
        for name, node in (("mine", "node-a"), ("others", "node-b")):
            self._made("/api/v1/namespaces/default/pods", {"kind": "Pod", "metadata": {"name": name}, "spec": {
                "nodeName": node, "containers": [{"name": "main", "image": "image"}]}})
        self._made("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "vmpin"}})
        self.admin("PATCH", f"{MINE}/status", {"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"}]}}, MERGE)
        done = server.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": [TOPOLOGY_CRD, *documents]}))
        assert done.returncode == 0, done.stderr
        self.token = server.service_account("vmpin", "vmpin-reporter", node="node-a")
        self.without_node = server.service_account("vmpin", "vmpin-reporter")

    def _made(self, path: str, content: dict[str, Any]) -> None:
        reply = self.server.create(path, {"apiVersion": "v1", **content})
        assert reply.code in (201, 409), reply

    def admin(self, method: str, path: str, body: object, kind: str = "application/json") -> None:
        reply = self.server.request(method, path, body, kind=kind)
        assert reply.code in (200, 201), reply

    def ask(self, method: str, path: str, body: object, kind: str, token: str | None = None,
            dry: bool = True) -> Reply:
        query: dict[str, object] = {"fieldManager": "vmpin-reporter", "force": "true"} if kind == APPLY else {}
        if dry:
            query["dryRun"] = "All"
        return self.server.request(method, path, body, token=token or self.token, kind=kind, query=query)

    def wait(self) -> None:
        """Until the API server goes by the policies and serves the resources, some time after they are made."""
        def ready() -> bool:
            label = {"metadata": {"labels": {"vmpin.io/ready": "x"}}}
            refused = self.ask("PATCH", "/api/v1/nodes/node-b", label, MERGE)
            pinning = self.ask("PATCH", f"{PINNINGS}/node-b", pinning_of("node-b"), APPLY)
            event = self.ask("POST", EVENTS, event_of("node-b"), "application/json")
            status = self.ask("PATCH", f"{OTHERS}/status", condition_of("others"), APPLY)
            topology = self.ask("PATCH", f"{TOPOLOGIES}/node-b", topology_of("node-b", zones=[]), APPLY)
            return ({refused.code, pinning.code, event.code, status.code} == {422}
                    and topology.code in (403, 422))  # the chart's rules may forbid it

        end = time.monotonic() + DEADLINE
        while not ready():
            assert time.monotonic() < end, "the policies are not in force"
            time.sleep(0.1)


def condition_of(pod: str, kind: str = "vmpin.io/CPUsPinned", **more: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": "default"}, "status": {
        "conditions": [{"type": kind, "status": "True", "reason": "Pinned", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}], **more}}


def pinning_of(node: str) -> dict[str, object]:
    return {"apiVersion": "vmpin.io/v1alpha1", "kind": "NodePinning", "metadata": {"name": node}, "status": {
        "ready": True, "observedAt": "2026-01-01T00:00:00Z", "refreshSeconds": 300, "sandboxes": []}}


def event_of(host: str | None, component: str = "vmpin-reporter", kind: str = "Pod", **more: str) -> dict[str, object]:
    source = {} if host is None else {"source": {"component": component, "host": host}}
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"}, "reason": "Pinned",
            "involvedObject": {"apiVersion": "v1", "kind": kind, "namespace": "default", "name": "mine"}, **source,
            **more}


def topology_of(node: str, **more: object) -> dict[str, object]:
    return {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": node}, **more}


class Case(NamedTuple):
    name: str
    code: int
    method: str
    path: str
    body: object
    kind: str = MERGE


def node(name: str, code: int, where: str, **body: object) -> Case:
    return Case(name, code, "PATCH", f"/api/v1/nodes/{where}", body)


def taints(name: str, code: int, *kept: object) -> Case:
    return node(name, code, "node-a", spec={"taints": list(kept)})


CASES = [
    Case("the condition of a pod of its node", 200, "PATCH", f"{MINE}/status", condition_of("mine"), APPLY),
    Case("the condition of another node's pod", 422, "PATCH", f"{OTHERS}/status", condition_of("others"), APPLY),
    Case("another condition", 422, "PATCH", f"{MINE}/status", condition_of("mine", "example.com/x"), APPLY),
    Case("Ready", 422, "PATCH", f"{MINE}/status", condition_of("mine", "Ready"), APPLY),
    Case("all conditions away", 422, "PATCH", f"{MINE}/status", {"status": {"conditions": None}}),
    Case("another part of the status", 422, "PATCH", f"{MINE}/status", {"status": {"phase": "Failed"}}),
    Case("a part of the status away", 422, "PATCH", f"{MINE}/status", {"status": {"phase": None}}),
    Case("both at once", 422, "PATCH", f"{MINE}/status", condition_of("mine", message="m"), APPLY),
    Case("the pod itself", 403, "DELETE", MINE, None),
    Case("its eviction", 403, "POST", f"{MINE}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction"}),
    node("its node's label", 200, "node-a", metadata={"labels": {"vmpin.io/ready": "true"}}),
    node("its node's label away", 200, "node-a", metadata={"labels": {"vmpin.io/ready": None}}),
    node("another node's label", 422, "node-b", metadata={"labels": {"vmpin.io/ready": "true"}}),
    node("a label of others", 422, "node-a", metadata={"labels": {"zone": "y"}}),
    node("a label of others away", 422, "node-a", metadata={"labels": {"zone": None}}),
    node("a new label of others", 422, "node-a", metadata={"labels": {"new": "y"}}),
    node("all labels away", 422, "node-a", metadata={"labels": None}),
    node("an annotation of the node", 422, "node-a", metadata={"annotations": {"vmpin.io/x": "y"}}),
    node("a finalizer", 422, "node-a", metadata={"finalizers": ["vmpin.io/x"]}),
    node("unschedulable", 422, "node-a", spec={"unschedulable": True}),
    node("the node's status", 403, "node-a/status", status={"phase": "Running"}),
    taints("the startup taint away", 200, ANOTHER),
    taints("no taint changed", 200, ANOTHER, TAINT),
    taints("the taints in another order", 422, TAINT, ANOTHER),
    taints("another taint away", 422, TAINT),
    taints("all taints away", 422),
    taints("a taint more", 422, ANOTHER, TAINT, {"key": "vmpin.io/more", "effect": "NoSchedule"}),
    Case("the taint away, with a test", 200, "PATCH", "/api/v1/nodes/node-a", [
        {"op": "test", "path": "/spec/taints/1", "value": TAINT}, {"op": "remove", "path": "/spec/taints/1"}], JSON),
    Case("an event of another component", 422, "POST", EVENTS, event_of("node-a", "kubelet"), "application/json"),
    Case("an event about a node", 422, "POST", EVENTS, event_of("node-a", kind="Node"), "application/json"),
    Case("an event of another reason", 422, "POST", EVENTS, event_of("node-a", reason="Killing"), "application/json"),
    Case("an event without a reason", 422, "POST", EVENTS, event_of("node-a", reason=""), "application/json"),
    Case("an event of its node", 201, "POST", EVENTS, event_of("node-a"), "application/json"),
    Case("an event of another node", 422, "POST", EVENTS, event_of("node-b"), "application/json"),
    Case("an event of no node", 422, "POST", EVENTS, event_of(None), "application/json"),
    Case("its own NodePinning", 201, "PATCH", f"{PINNINGS}/node-a", pinning_of("node-a"), APPLY),
    Case("another node's NodePinning", 422, "PATCH", f"{PINNINGS}/node-b", pinning_of("node-b"), APPLY),
    Case("a list of secrets", 403, "GET", "/api/v1/secrets", None),
]
EVERYTHING = [
    Case("an annotation of a pod", 403, "PATCH", MINE, {"metadata": {"annotations": {"vmpin.io/x": "y"}}}),
    Case("its own topology", 201, "PATCH", f"{TOPOLOGIES}/node-a", topology_of("node-a", zones=[]), APPLY),
    Case("another node's topology", 422, "PATCH", f"{TOPOLOGIES}/node-b", topology_of("node-b", zones=[]), APPLY),
]


@pytest.fixture(scope="module")
def cluster(built: Programs, server: ApiServer) -> Cluster:
    """With every right that the chart can give."""
    values = "reporter: {nrt: own, startupTaint: vmpin.io/not-ready}"
    made = Cluster(server, objects(built, values, "-crds"))
    made.wait()
    return made


@pytest.mark.parametrize("case", [*CASES, *EVERYTHING], ids=lambda case: case.name)
def test_a_write_is_taken_or_refused(cluster: Cluster, case: Case) -> None:
    reply = cluster.ask(case.method, case.path, case.body, case.kind)
    assert reply.code == case.code, reply.body.get("message")
    if reply.code == 422:  # and not because an expression fails
        assert "reporter" in reply.body["message"].partition("denied request: ")[2], reply.body["message"]


def test_a_condition_can_be_changed_and_withdrawn(cluster: Cluster) -> None:
    for body in condition_of("mine"), condition_of("mine") | {"status": {}}:
        assert cluster.ask("PATCH", f"{MINE}/status", body, APPLY, dry=False).code == 200
    found = cluster.server.get(MINE).body["status"]["conditions"]
    assert [each["type"] for each in found] == ["Ready"]


def test_an_event_can_be_counted_up_and_not_moved(cluster: Cluster) -> None:
    assert cluster.ask("POST", EVENTS, event_of("node-a"), "application/json", dry=False).code == 201
    assert cluster.ask("PATCH", f"{EVENTS}/e", {"count": 2}, MERGE).code == 200
    assert cluster.ask("PATCH", f"{EVENTS}/e", {"source": {"host": "node-b"}}, MERGE).code == 422
    cluster.server.create(EVENTS, event_of("node-b") | {"metadata": {"name": "f", "namespace": "default"}})
    assert cluster.ask("PATCH", f"{EVENTS}/f", {"source": {"host": "node-a"}}, MERGE).code == 422


def test_labels_do_not_come_in_by_the_status(cluster: Cluster) -> None:
    """The API server of a cluster takes them there; this one may not."""
    for path, part in ((f"{MINE}/status", "labels"), (f"{MINE}/status", "annotations")):
        reply = cluster.ask("PATCH", path, {"metadata": {part: {"a": "b"}}}, MERGE)
        assert reply.code == 422 or part not in reply.body["metadata"], reply.body


def test_a_token_without_its_node_is_refused_with_the_reason(cluster: Cluster) -> None:
    reply = cluster.ask("PATCH", f"{MINE}/status", condition_of("mine"), APPLY, token=cluster.without_node)
    assert reply.code == 422
    assert "policy.enabled=false" in reply.body["message"]


def test_the_policies_concern_no_other_user(cluster: Cluster) -> None:
    labels = {"metadata": {"labels": {"any": "label"}}}
    assert cluster.ask("PATCH", "/api/v1/nodes/node-b", labels, MERGE, token=cluster.server.admin).code == 200
