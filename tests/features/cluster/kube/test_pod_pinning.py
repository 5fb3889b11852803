"""The condition of a pod: what its CPUs are, and nothing written without a change."""

from __future__ import annotations

from typing import Any

import pytest
from kube_given import as_written, entry, pod, reported, sandbox

from vmpin.features.cluster.kube.pod_pinning import (
    AWAY,
    MAX_MESSAGE,
    PinState,
    condition_update,
    condition_withdrawal,
    pinning_of,
)
from vmpin.features.cluster.kube.pod_record import record_of


@pytest.mark.parametrize(("changes", "state", "status", "text"), [
    ({}, PinState.PINNED, "True",
     "2 of 3 vCPUs have a CPU of their own (4-5), and all threads are within CPUs 0-1,4-5"),
    # One exclusive CPU: the vCPUs that float can be nowhere else.
    ({"mask": "4", "vcpus": {"0": "4", "1": "4", "2": "4"}, "containers": [
        {"name": "main", "cpus": "4", "exclusive": True, "vcpus": "2", "guest": "applied"}]}, PinState.PINNED, "True",
     "1 of 3 vCPUs have a CPU of their own (4), and all threads are within CPUs 4"),
    # A shared part of one CPU, on which one vCPU floats.
    ({"mask": "1,4-5", "vcpus": {"0": "1", "1": "4", "2": "5"}}, PinState.PINNED, "True",
     "2 of 3 vCPUs have a CPU of their own (4-5), and all threads are within CPUs 1,4-5"),
    ({"verdict": "floating", "mask": "0-1"}, PinState.FLOATING, "True", "its threads share CPUs 0-1"),
    ({"verdict": "degraded", "vcpus": {"0": "4-5"}, "reasons": ["1 vCPU for 2 exclusive CPUs: no one-to-one"]},
     PinState.DEGRADED, "False", "raise default_maxvcpus to at least 2"),
    ({"verdict": "degraded", "reasons": ["3 of 9 threads are misplaced"]}, PinState.DEGRADED, "False",
     "3 of 9 threads are misplaced"),
    ({"misplaced": 1}, PinState.DEGRADED, "False", "its verdict is pinned"),
    ({"verdict": "waiting", "reasons": ["waits for the runtime"]}, PinState.WAITING, "Unknown",
     "waits for the runtime"),
    ({"verdict": "unmanaged", "reasons": ["no shared pool"]}, PinState.UNMANAGED, "False", "no shared pool"),
    ({"verdict": "off", "suspended": True, "reasons": ["unpinned by hand: `vmpin repin`"]}, PinState.SUSPENDED,
     "False", "unpinned by hand"),
    ({"verdict": "off"}, PinState.OFF, "False", "its verdict is off"),
    ({"verdict": "off", "mask": None, "reasons": ["not yet placed"]}, PinState.WAITING, "Unknown", "not yet placed"),
    ({"verdict": "off", "vmm": None, "reasons": ["its VMM does not run"]}, PinState.NOT_RUNNING, "Unknown",
     "its VMM does not run"),
    ({"verdict": "no such verdict"}, PinState.OFF, "False", "no such verdict")])
def test_each_state_has_its_reason(changes: dict[str, Any], state: PinState, status: str, text: str) -> None:
    pinned = pinning_of(sandbox(**changes))
    assert (pinned.state, pinned.state.status) == (state, status)
    assert text in pinned.message


def test_a_collision_is_shown_on_each_pod_that_has_part_in_it() -> None:
    collision = {"cpu": 4, "sandboxes": ["sandbox-web", "uid-runc"], "what": "exclusive to both"}
    node = reported(entry("web"), entry("other"), entry("runc"), collisions=[collision])
    states = {name: pinning_of(node.sandboxes[f"sandbox-{name}"], node.node.collisions)
              for name in ("web", "other", "runc")}
    assert {name: state.state for name, state in states.items()} == {
        "web": PinState.COLLISION, "other": PinState.PINNED, "runc": PinState.COLLISION}
    assert states["web"].message == "CPU 4: exclusive to both"


def test_a_long_message_is_cut() -> None:
    assert len(pinning_of(sandbox(verdict="degraded", reasons=["é" * 500] * 9)).message) == MAX_MESSAGE


def test_nothing_is_written_for_a_condition_that_is_so_already() -> None:
    wanted = pinning_of(sandbox())
    first = condition_update(pod(), wanted, 1000.0)
    assert first is not None
    assert (first.method, first.path, first.content_type) == (
        "PATCH", "/api/v1/namespaces/default/pods/web/status", "application/apply-patch+yaml")
    assert dict(first.query) == {"fieldManager": "vmpin-reporter", "force": "true"}
    body: Any = first.body
    assert body["metadata"] == {"name": "web", "namespace": "default", "uid": "uid-web"}
    assert condition_update(as_written(pod(), first), wanted, 2000.0) is None


def test_the_time_of_transition_is_that_of_the_status() -> None:
    first = condition_update(pod(), pinning_of(sandbox()), 0.0)
    assert first is not None
    written = as_written(pod(), first)
    # Another reason, the same status.
    second = condition_update(written, pinning_of(sandbox(verdict="floating")), 60.0)
    assert second is not None
    assert as_written(pod(), second).condition == {
        "type": "vmpin.io/CPUsPinned", "status": "True", "reason": "NoExclusiveCPUs",
        "message": "no CPU is its own: its threads share CPUs 0-1,4-5", "lastTransitionTime": "1970-01-01T00:00:00Z"}
    third = condition_update(written, AWAY, 60.0)
    assert third is not None
    assert (as_written(pod(), third).condition or {})["lastTransitionTime"] == "1970-01-01T00:01:00Z"


def test_a_withdrawal_names_no_condition_and_only_where_there_is_one() -> None:
    assert condition_withdrawal(pod()) is None
    withdrawal = condition_withdrawal(pod(condition={"status": "True"}))
    assert withdrawal is not None
    body: Any = withdrawal.body
    assert body["status"] == {}
    assert body["metadata"]["uid"] == "uid-web"


def raw(**meta: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": "web", "uid": "u", **meta}, "status": {}}


def test_a_static_pod_has_the_runtimes_uid_beside_its_own() -> None:
    mirrored = record_of(raw(annotations={"kubernetes.io/config.mirror": "hash"}))
    assert mirrored is not None
    assert (mirrored.uid, mirrored.runtime_uid) == ("u", "hash")


@pytest.mark.parametrize("item", [
    {}, {"metadata": None}, raw(name="../../nodes/x"), raw(namespace="a/b"), raw(uid=None), raw(name="A"),
    {"metadata": raw()["metadata"], "status": {"conditions": [3]}}, raw(name="a" * 254)])
def test_what_is_no_pod_is_left_out(item: dict[str, Any]) -> None:
    assert record_of(item) is None


@pytest.mark.parametrize(("item", "ending"), [
    (raw(), False), (raw(deletionTimestamp="2026-01-01T00:00:00Z"), True),
    ({**raw(), "status": {"phase": "Succeeded"}}, True), ({**raw(), "status": {"phase": "Running"}}, False),
    ({**raw(), "status": None}, False)])
def test_a_pod_that_ends_is_known_as_such(item: dict[str, Any], ending: bool) -> None:
    record = record_of(item)
    assert record is not None
    assert record.ending == ending
