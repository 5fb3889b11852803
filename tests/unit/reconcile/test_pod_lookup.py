"""The pod's name by whatever a log line has of a sandbox: ids, paths with ids, claims; also after its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import ContainerId, Pod, SandboxId
from vmpin.reconcile import pod_lookup
from vmpin.reconcile.pod_lookup import PodLookup

SANDBOX, CONTAINER, CLAIM = "5" * 64, "c" * 64, "0a1b2c3d-0000-4000-8000-00000000000f"


def sandbox(id: str, name: str, *containers: str) -> SandboxState:
    record: Any = SimpleNamespace()
    return SandboxState(SandboxId(id), pod=Pod("demo", name, f"uid-{name}") if name else None,
                        containers={ContainerId(container): record for container in containers})


STATES = {state.id: state for state in (sandbox(SANDBOX, "shop", CONTAINER, "main"), sandbox("other", "", "c2"))}


@pytest.mark.parametrize(("text", "pod"), [
    (SANDBOX, "demo/shop"), (CONTAINER, "demo/shop"), ("main", "demo/shop"), ("other", ""), ("c2", ""), ("", ""),
    (f"/sys/fs/cgroup/kubepods.slice/pod_x/cri-containerd-{CONTAINER}.scope", "demo/shop"),
    (f"/kubepods/burstable/kata_{SANDBOX}", "demo/shop"),
    (f"/run/vc/vm/{SANDBOX}/qmp.sock", "demo/shop"),
    (f"/run/vc/sbs/{SANDBOX}/persist.json: is not JSON: 1/2", "demo/shop"),
    (f"/var/run/cdi/dra.k8s.io-cpu_claim-{CLAIM}.json: Permission denied", "demo/shop"),
    ("/run/vmpin/state.json", ""), (f"sandbox {SANDBOX}", "")])
def test_a_pod_is_named_by_ids_and_by_paths_that_have_them(text: str, pod: str) -> None:
    assert PodLookup(lambda: STATES, lambda: {CLAIM: {"uid-shop"}}).pod_of(text) == pod


def test_a_pod_is_named_for_a_while_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_lookup, "ENDED", 2)
    lookup = PodLookup(dict, lambda: None)
    for name in "abca":
        lookup.keep(sandbox(name, f"pod-{name}", f"main-{name}"))
    assert [lookup.pod_of(name) for name in ("a", "main-a", "c", "b")] == [
        "demo/pod-a", "demo/pod-a", "demo/pod-c", ""]


def test_a_sandbox_that_is_found_again_without_its_name_keeps_the_one_from_before_its_end() -> None:
    """A VM that runs on after its pod's end was reported."""
    again = sandbox(SANDBOX, "", CONTAINER)
    lookup = PodLookup(lambda: {again.id: again}, lambda: None)
    lookup.keep(sandbox(SANDBOX, "shop", CONTAINER))
    assert [lookup.pod_of(name) for name in (SANDBOX, CONTAINER)] == ["demo/shop", "demo/shop"]
