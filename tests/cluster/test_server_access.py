"""What the API server allows, checks and shows: roles, policies, custom resources, kubectl, faults."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import server_objects
from cluster.build import Programs
from cluster.server import DEADLINE, MERGE, ApiServer
from cluster.server_objects import EVENTS, PINNED, PODS, condition, pod

name = server_objects.name
#: Tests of the tests.
pytestmark = [pytest.mark.cluster, pytest.mark.release]

NODES = "/api/v1/nodes"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_POLICIES = "/apis/admissionregistration.k8s.io/v1"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def test_a_token_is_taken_until_it_expires_or_is_revoked(server: ApiServer) -> None:
    expiring, revoked = server.user("someone"), server.user("someone")
    assert [server.get("/version", token=token).code for token in (expiring, revoked, "unknown")] == [200, 200, 401]
    server.expire(expiring)
    server.revoke(revoked)
    assert [server.get("/version", token=token).code for token in (expiring, revoked)] == [401, 401]


def role(name: str, *rules: dict[str, list[str]]) -> dict[str, Any]:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
            "rules": list(rules)}


def bind(server: ApiServer, name: str, *rules: dict[str, list[str]]) -> None:
    """Give the ServiceAccount of a name these rights."""
    server.create(f"{_RBAC}/clusterroles", role(name, *rules))
    made = server.create(f"{_RBAC}/clusterrolebindings", {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": name}]})
    assert made.code == 201, made


def test_roles_take_effect_and_are_taken_away(server: ApiServer, name: str) -> None:
    uid = server.create(PODS, pod(name)).body["metadata"]["uid"]
    token = server.service_account("default", name)
    refused = server.get(PODS, token=token)
    assert refused.code == 403
    assert "cannot list resource" in refused.body["message"]
    bind(server, name, {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
         {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["mine"]})
    until(lambda: server.apply(f"{PODS}/{name}/status", condition(uid, "True"), manager="m", token=token).code == 200)
    assert server.apply(f"{PODS}/{name}", pod(name), manager="m", token=token).code == 403, "another resource"
    assert server.get(f"{NODES}/mine", token=token).code == 404
    assert server.get(f"{NODES}/other", token=token).code == 403
    assert server.get(NODES, token=token).code == 403
    server.request("DELETE", f"{_RBAC}/clusterrolebindings/{name}")
    until(lambda: server.get(f"{NODES}/mine", token=token).code == 403)


def test_a_policy_keeps_a_node_to_its_own_pods(server: ApiServer, name: str) -> None:
    bind(server, name, {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]})
    claim = "request.userInfo.extra[?'authentication.kubernetes.io/node-name'].orValue([''])[0]"
    server.create(f"{_POLICIES}/validatingadmissionpolicies", {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                                                        "operations": ["UPDATE"], "resources": ["pods/status"]}]},
                 "matchConditions": [{"name": "ours", "expression":
                                      f"request.userInfo.username == 'system:serviceaccount:default:{name}'"}],
                 "validations": [{"expression": f"oldObject.spec.nodeName == {claim}",
                                  "message": "not of this node"}]}})
    server.create(f"{_POLICIES}/validatingadmissionpolicybindings", {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}})
    uid = server.create(PODS, pod(name, node="node-a")).body["metadata"]["uid"]
    here, elsewhere, unbound = (server.service_account("default", name, node) for node in ("node-a", "node-b", None))

    def code(token: str) -> int:
        return server.apply(f"{PODS}/{name}/status", condition(uid, "True"), manager="m", token=token).code

    until(lambda: code(elsewhere) == 422)
    assert (code(here), code(unbound)) == (200, 422)
    refused = server.apply(f"{PODS}/{name}/status", condition(uid, "True"), manager="m", token=elsewhere)
    assert "not of this node" in refused.body["message"]


@pytest.fixture(scope="module")
def widgets(server: ApiServer) -> str:
    """A custom resource with a schema and columns."""
    schema = {"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 1}, "kind": {"type": "string"}, "apiVersion": {"type": "string"},
        "metadata": {"type": "object"}}}
    made = server.create(_CRDS, {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.org"},
        "spec": {"group": "example.org", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
                 "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
                               "additionalPrinterColumns": [
                                   {"name": "Size", "type": "integer", "jsonPath": ".size"}]}]}})
    assert made.code == 201, made
    until(lambda: server.get("/apis/example.org/v1/widgets").code == 200)
    return "/apis/example.org/v1/widgets"


def test_a_custom_resource_is_checked_by_its_schema(server: ApiServer, widgets: str, name: str) -> None:
    widget = {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": name}, "size": 3}
    assert server.apply(f"{widgets}/{name}", widget, manager="vmpin").code == 201
    wrong = server.apply(f"{widgets}/{name}", widget | {"size": 0}, manager="vmpin")
    assert (wrong.code, wrong.body["details"]["causes"][0]["field"]) == (422, "size")
    unknown = server.request("PATCH", f"{widgets}/{name}", {"colour": "red"}, kind=MERGE,
                             query={"fieldValidation": "Strict"})
    assert (unknown.code, 'unknown field "colour"' in unknown.body["message"]) == (422, True)
    assert server.apply(f"{widgets}/{name}", widget | {"size": 4}, manager="other").code == 409


def test_kubectl_shows_the_columns_of_a_custom_resource(server: ApiServer, widgets: str, name: str) -> None:
    server.create(widgets, {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": name}, "size": 7})
    shown = server.kubectl("get", "widgets", name)
    assert [line.split() for line in shown.stdout.splitlines()] == [["NAME", "SIZE"], [name, "7"]], shown


# kubectl.

_MANIFEST = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: {name}, namespace: default}}
spec:
  selector: {{matchLabels: {{app: a}}}}
  template:
    metadata: {{labels: {{app: a}}}}
    spec:
      {extra}
      containers: [{{name: main, image: none, ports: [{{containerPort: 80, protocol: TCP}}]}}]
"""


def test_kubectl_applies_and_shows(server: ApiServer, name: str) -> None:
    manifest = _MANIFEST.format(name=name, extra="hostNetwork: true")
    applied = server.kubectl("apply", "--validate=strict", "-f", "-", stdin=manifest)
    assert applied.stdout == f"daemonset.apps/{name} created\n", applied
    again = server.kubectl("apply", "-f", "-", stdin=manifest)
    assert again.stdout == f"daemonset.apps/{name} unchanged\n", again
    assert server.kubectl("diff", "-f", "-", stdin=manifest).returncode == 0
    assert name in server.kubectl("get", "daemonsets", "-A").stdout
    assert "hostNetwork" in server.kubectl("explain", "daemonset.spec.template.spec").stdout
    assert server.kubectl("version").returncode == 0


def test_kubectl_describes_a_pod_with_its_condition_and_events(server: ApiServer, name: str) -> None:
    uid = server.create(PODS, pod(name)).body["metadata"]["uid"]
    server.apply(f"{PODS}/{name}/status", condition(uid, "False"), manager="vmpin")
    server.create(EVENTS, {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "reason": "CPUCollision",
                           "message": "shares CPU 3", "type": "Warning", "source": {"component": "vmpin"},
                           "involvedObject": {"kind": "Pod", "name": name, "namespace": "default", "uid": uid}})
    shown = server.kubectl("describe", "pod", name)
    assert shown.returncode == 0, shown
    assert PINNED in shown.stdout
    assert "shares CPU 3" in shown.stdout


def test_a_dry_run_at_the_server_refuses_an_unknown_field_and_writes_nothing(server: ApiServer, name: str) -> None:
    def run(extra: str) -> tuple[int, str]:
        done = server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-",
                              stdin=_MANIFEST.format(name=name, extra=extra))
        return done.returncode, done.stdout + done.stderr

    assert run("hostPID: true") == (0, f"daemonset.apps/{name} created (server dry run)\n")
    code, said = run("hostPIDs: true")
    assert code == 1
    assert 'unknown field "spec.template.spec.hostPIDs"' in said
    assert server.get(f"/apis/apps/v1/namespaces/default/daemonsets/{name}").code == 404


@pytest.fixture
def faults(server: ApiServer) -> Iterator[Callable[..., None]]:
    yield server.faults
    server.faults()


def test_a_fault_hits_what_it_names_and_nothing_else(server: ApiServer, faults: Callable[..., None]) -> None:
    token = server.user("busy", ["system:masters"])
    faults({"code": 429, "reason": "TooManyRequests", "retryAfter": 7, "users": ["busy"], "resources": ["pods"]})
    refused = server.get(PODS, token=token)
    assert (refused.code, refused.headers["Retry-After"], refused.body["reason"]) == (429, "7", "TooManyRequests")
    assert [server.get(NODES, token=token).code, server.get(PODS).code] == [200, 200]
    faults()
    assert server.get(PODS, token=token).code == 200


def test_it_keeps_its_objects_and_its_port_when_it_is_killed(built: Programs, name: str) -> None:
    with ApiServer(built) as server:
        old = server.create(PODS, pod(name)).body["metadata"]
        server.freeze()
        with pytest.raises(TimeoutError):
            server.request("GET", PODS, timeout=0.5)
        server.thaw()
        assert server.get(PODS).code == 200
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            server.get(PODS)
        server.start()
        assert server.get(f"{PODS}/{name}").body["metadata"]["uid"] == old["uid"]
        trusted = ssl.create_default_context(cafile=server.ca)
        server.restart(new_ca=True)
        assert server.get(f"{PODS}/{name}").code == 200
        before = ssl.create_default_context(cafile=server.ca).get_ca_certs(binary_form=True)
        assert before != trusted.get_ca_certs(binary_form=True)
