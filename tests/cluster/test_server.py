"""The API server is what it says it is: each test shows a rule of Kubernetes that vmpin's programs rely on."""

from __future__ import annotations

import itertools
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.build import Programs
from cluster.server import DEADLINE, JSON, MERGE, STRATEGIC, ApiServer

pytestmark = pytest.mark.cluster

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_POLICIES = "/apis/admissionregistration.k8s.io/v1"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_PINNED = "vmpin.io/CPUsPinned"
_numbers = itertools.count()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


@pytest.fixture
def name() -> str:
    """One that no other test has."""
    return f"t{next(_numbers)}"


def pod(name: str, node: str = "", **spec: object) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "main", "image": "none"}], "nodeName": node, **spec}}


def condition(uid: str, status: str, kind: str = _PINNED) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": uid},
            "status": {"conditions": [{"type": kind, "status": status, "reason": "Pinned"}]}}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def managers(body: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["manager"], each.get("subresource", "")) for each in body["metadata"].get("managedFields", ())}


# Objects.

def test_an_update_from_an_old_version_is_a_conflict(server: ApiServer, name: str) -> None:
    first = server.create(PODS, pod(name)).body
    first["metadata"]["labels"] = {"a": "1"}
    assert server.request("PUT", f"{PODS}/{name}", first).code == 200
    assert server.request("PUT", f"{PODS}/{name}", first).code == 409


def test_each_kind_of_patch_does_what_its_kind_says(server: ApiServer, name: str) -> None:
    server.create(PODS, pod(name))
    path = f"{PODS}/{name}"
    added = server.request("PATCH", path, [{"op": "add", "path": "/metadata/labels", "value": {"a": "1"}}], kind=JSON)
    assert added.body["metadata"]["labels"] == {"a": "1"}
    refused = server.request("PATCH", path, [{"op": "test", "path": "/metadata/labels/a", "value": "2"}], kind=JSON)
    assert refused.code == 422
    merged = server.request("PATCH", path, {"metadata": {"labels": {"a": None, "b": "2"}}}, kind=MERGE)
    assert merged.body["metadata"]["labels"] == {"b": "2"}
    container = {"name": "main", "image": "other"}
    by_key = server.request("PATCH", path, {"spec": {"containers": [container]}}, kind=STRATEGIC)
    assert [each["image"] for each in by_key.body["spec"]["containers"]] == ["other"]


def test_spec_and_status_are_written_apart(server: ApiServer, name: str) -> None:
    made = server.create(PODS, pod(name) | {"status": {"phase": "Running"}}).body
    assert made["status"]["phase"] == "Pending"
    changed = {"spec": {"nodeName": "elsewhere"}, "status": {"phase": "Running"}}
    assert server.request("PATCH", f"{PODS}/{name}", changed, kind=MERGE).body["status"]["phase"] == "Pending"
    other = changed | {"spec": {"nodeName": "third"}}
    written = server.request("PATCH", f"{PODS}/{name}/status", other, kind=MERGE).body
    assert (written["spec"]["nodeName"], written["status"]["phase"]) == ("elsewhere", "Running")


def test_an_object_of_an_absent_namespace_is_refused(server: ApiServer, name: str) -> None:
    assert server.create("/api/v1/namespaces/absent/pods", pod(name)).code == 404


def test_a_running_pod_is_deleted_in_two_steps(server: ApiServer, name: str) -> None:
    server.create(PODS, pod(name, node="node-a"))
    leaving = server.request("DELETE", f"{PODS}/{name}").body
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == 30
    assert server.get(f"{PODS}/{name}").code == 200
    assert server.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0}).code == 200
    assert server.get(f"{PODS}/{name}").code == 404


def test_an_event_lies_in_the_namespace_of_what_it_is_about(server: ApiServer, name: str) -> None:
    def event(about: str, count: int = 1) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "reason": "Pinned", "count": count,
                "type": "Normal", "message": "m", "source": {"component": "vmpin", "host": "node-a"},
                "involvedObject": {"kind": "Pod", "name": name, "namespace": about, "uid": "u"}}

    assert server.create(EVENTS, event("kube-system")).code == 422
    assert server.create(EVENTS, event("default")).code == 201
    assert server.request("PATCH", f"{EVENTS}/{name}", {"count": 2}, kind=STRATEGIC).body["count"] == 2
    found = server.get(EVENTS, fieldSelector=f"involvedObject.name={name},reason=Pinned").body["items"]
    assert [each["count"] for each in found] == [2]


# Server-side apply.

def test_apply_keeps_each_managers_fields_apart(server: ApiServer, name: str) -> None:
    path = f"/api/v1/namespaces/default/configmaps/{name}"
    assert server.apply(path, config_map(name, a="1"), manager="one").code == 201
    both = server.apply(path, config_map(name, b="2"), manager="two").body
    assert (both["data"], managers(both)) == ({"a": "1", "b": "2"}, {("one", ""), ("two", "")})
    refused = server.apply(path, config_map(name, a="2", b="2"), manager="two")
    assert (refused.code, refused.body["details"]["causes"][0]["reason"]) == (409, "FieldManagerConflict")
    assert server.apply(path, config_map(name, a="2", b="2"), manager="two", force=True).body["data"]["a"] == "2"
    assert server.apply(path, config_map(name, b="2"), manager="two").body["data"] == {"b": "2"}, "withdrawn"


def test_apply_owns_its_own_condition_only(server: ApiServer, name: str) -> None:
    uid = server.create(PODS, pod(name)).body["metadata"]["uid"]
    path = f"{PODS}/{name}/status"
    server.apply(path, condition(uid, "True", "Ready"), manager="kubelet")
    server.apply(path, condition(uid, "True"), manager="vmpin")
    both = server.apply(path, condition(uid, "False"), manager="vmpin").body
    found = {each["type"]: each["status"] for each in both["status"]["conditions"]}
    assert found == {"Ready": "True", _PINNED: "False"}
    assert ("vmpin", "status") in managers(both)
    without = server.apply(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": uid}}, manager="vmpin").body
    assert [each["type"] for each in without["status"]["conditions"]] == ["Ready"]


def test_a_status_that_is_applied_with_another_uid_is_not_written(server: ApiServer, name: str) -> None:
    old = server.create(PODS, pod(name)).body["metadata"]["uid"]
    server.request("DELETE", f"{PODS}/{name}")
    assert server.apply(f"{PODS}/{name}/status", condition(old, "True"), manager="vmpin").code == 404
    server.create(PODS, pod(name))
    refused = server.apply(f"{PODS}/{name}/status", condition(old, "True"), manager="vmpin", force=True)
    assert (refused.code, refused.body["details"]["causes"][0]["field"]) == (422, "metadata.uid")
    assert "conditions" not in server.get(f"{PODS}/{name}").body["status"]


# Lists and watches.

def test_a_list_is_selected_by_fields_and_labels(server: ApiServer, name: str) -> None:
    for node in ("a", "b"):
        made = pod(f"{name}-{node}", node=f"{name}-{node}")
        made["metadata"]["labels"] = {"of": name}
        server.create(PODS, made)

    def names(**query: str) -> list[str]:
        return [each["metadata"]["name"] for each in server.get("/api/v1/pods", **query).body["items"]]

    assert names(fieldSelector=f"spec.nodeName={name}-a") == [f"{name}-a"]
    assert names(labelSelector=f"of={name}") == [f"{name}-a", f"{name}-b"]
    assert server.get(PODS, fieldSelector="spec.containers=x").code == 400


def test_a_list_comes_in_pages(server: ApiServer, name: str) -> None:
    path, found, token = "/api/v1/namespaces/kube-system/configmaps", [], ""
    for each in (f"{name}-{number}" for number in range(5)):
        server.create(path, config_map(each))
    while True:
        page = server.get(path, limit=2, **{"continue": token}).body
        assert len(page["items"]) <= 2
        found += [each["metadata"]["name"] for each in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert found == [f"{name}-{number}" for number in range(5)]


def test_a_watch_of_a_node_shows_only_its_pods(server: ApiServer, name: str) -> None:
    version = server.get(PODS).body["metadata"]["resourceVersion"]
    with server.watch("/api/v1/pods", resourceVersion=version, fieldSelector=f"spec.nodeName={name}") as watch:
        server.create(PODS, pod(f"{name}-other", node="other"))
        uid = server.create(PODS, pod(name, node=name)).body["metadata"]["uid"]
        server.apply(f"{PODS}/{name}/status", condition(uid, "True"), manager="vmpin")
        server.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        events = [watch.next() for _ in range(4)]
    assert [(each["type"], each["object"]["metadata"]["name"]) for each in events if each] == [
        ("ADDED", name), ("MODIFIED", name), ("MODIFIED", name), ("DELETED", name)], "a deletion is a change first"


def test_a_watch_is_ended_by_the_server_after_a_bookmark(server: ApiServer, name: str) -> None:
    """It comes two seconds before the end, if meanwhile something else has changed."""
    def ended_after(seconds: int) -> bool:
        version = server.get(PODS).body["metadata"]["resourceVersion"]
        with server.watch(PODS, resourceVersion=version, fieldSelector=f"spec.nodeName={name}",
                          timeoutSeconds=seconds) as watch:
            server.create(PODS, pod(f"{name}-{seconds}", node="other"))
            events = list(iter(watch.next, None))
        assert {each["type"] for each in events} <= {"BOOKMARK"}
        return any(int(each["object"]["metadata"]["resourceVersion"]) > int(version) for each in events)

    # On a busy machine the pod may be there only after that.
    assert any(ended_after(seconds) for seconds in (10, 60))


def test_a_past_that_was_compacted_is_gone(built: Programs, name: str) -> None:
    with ApiServer(built, watch_cache=False) as server:
        old = server.create(PODS, pod(name)).body["metadata"]["resourceVersion"]
        server.compact()
        with server.watch(PODS, resourceVersion=old) as watch:
            assert watch.until("ERROR")["object"]["code"] == 410
        now = server.get(PODS).body["metadata"]["resourceVersion"]
        with server.watch(PODS, resourceVersion=now) as watch:
            server.create(PODS, pod(f"{name}-last"))
            assert watch.until("ADDED")["object"]["metadata"]["name"] == f"{name}-last"


# Rights.

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


# Custom resources.

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
    assert _PINNED in shown.stdout
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


# Faults.

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
