"""The API server is what it says it is: each test shows a rule of Kubernetes that vmpin's programs rely on."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import server_objects
from cluster.build import Programs
from cluster.server import JSON, MERGE, STRATEGIC, ApiServer
from cluster.server_objects import EVENTS, PINNED, PODS, condition, pod

name = server_objects.name
#: Tests of the tests.
pytestmark = [pytest.mark.cluster, pytest.mark.release]


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def managers(body: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["manager"], each.get("subresource", "")) for each in body["metadata"].get("managedFields", ())}


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
    assert found == {"Ready": "True", PINNED: "False"}
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
