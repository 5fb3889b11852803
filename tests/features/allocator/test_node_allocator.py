"""The allocator in the watcher: made without an effect on anything else, and checked when the watcher starts."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from trees import make_tree

from vmpin.config import loading
from vmpin.config.timeouts import TIMEOUTS
from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.errors import UsageError
from vmpin.features.allocator.allocate_settings import ledger_path
from vmpin.features.allocator.grants.ledger import Ledger
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.node_allocator import NodeAllocator
from vmpin.features.allocator.watcher_part import set_policy
from vmpin.reconcile.reconciler import Reconciler
from vmpin.sources.nri.nri_events import CpuAnswer
from vmpin.wire.nri_enums import Verb

CPUS = CpuSet(os.sched_getaffinity(0))


def on_a_node(root: Path, keys: Mapping[str, str] = MappingProxyType({})) -> Reconciler:
    """A node whose ledger of before a restart has all CPUs in the pool."""
    paths = {f"paths.{each}": str(root / each) for each in ("run", "kata_go", "kata_rs", "kubelet", "nri", "proc")}
    for name in ("run", "proc", "kubelet"):
        (root / name).mkdir()
    config = loading.load(None, {}, {**paths, "allocate.mode": "on", "watch.kubelet": "true", **keys})
    found = Reconciler(config)
    LedgerFile(ledger_path(config), found.view.boot_id).save(Ledger(shared=CPUS))
    return found


def test_it_is_made_without_an_effect_and_checked_later(tmp_path: Path) -> None:
    reconciler = on_a_node(tmp_path)
    made = NodeAllocator(reconciler, lambda: None, TIMEOUTS.cri_call)
    assert (reconciler.view.rulings.written, made.allocator.suspended) == (False, "")
    made.check()
    assert reconciler.view.rulings.written
    assert reconciler.view.rulings.pool == CPUS


def test_it_is_suspended_by_the_first_check_where_the_kubelet_gives_cpus_out(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reconciler = on_a_node(tmp_path)
    (tmp_path / "kubelet/cpu_manager_state").write_text(json.dumps({"policyName": "static",
                                                                    "defaultCpuSet": str(CPUS)}))
    reconciler.node_state.authorities.read(reconciler.view.config)
    made = NodeAllocator(reconciler, lambda: None, TIMEOUTS.cri_call)
    assert (made.allocator.suspended, caplog.messages) == ("", [])
    made.check()
    assert made.allocator.suspended.startswith("the kubelet's CPU manager policy is static")
    assert not reconciler.view.rulings.written
    assert [message.partition(": ")[2][:21] for message in caplog.messages] == ["nothing is allocated:"]


def test_it_is_suspended_while_there_are_claims_of_a_dra_driver(tmp_path: Path) -> None:
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    spec = cdi / "dra.k8s.io-cpu_claim-a.json"
    spec.write_text(json.dumps({"kind": "dra.k8s.io/cpu", "devices": [
        {"name": "claim-a", "containerEdits": {"env": [f"DRA_CPUSET_a={CPUS.first}"]}}]}))
    reconciler = on_a_node(tmp_path, {"paths.cdi": str(cdi)})
    made = NodeAllocator(reconciler, lambda: None, TIMEOUTS.cri_call)
    made.check()
    assert made.allocator.suspended.startswith("dra-driver-cpu has prepared claims")
    assert reconciler.view.rulings.authorities == ("dra",)
    spec.unlink()
    reconciler.node_state.authorities.read(reconciler.view.config)
    made.check()
    assert made.allocator.suspended == ""


@contextlib.contextmanager
def koordlet(root: Path) -> Iterator[None]:
    """Its socket on the node whose /proc is `root`/proc."""
    path = root / "proc/1/root/var/run/koordlet/koordlet.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield


def test_it_is_refused_at_the_start_beside_another_program_until_the_watcher_is_restarted(
        tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path_factory.mktemp("n")
    reconciler = on_a_node(root)
    with koordlet(root):
        made = NodeAllocator(reconciler, lambda: None, TIMEOUTS.cri_call)
        made.check()
        assert "koordinator may give out CPUs, too" in made.allocator.suspended
        assert not reconciler.view.rulings.written
        answer = made.allocator.decide(Verb.CREATE, RequestedContainer(ContainerId("c"), SandboxId("pod")))
        assert answer == CpuAnswer()  # it starts all the same
        made.resynced()
    made.resynced()  # while it is updated
    assert "koordlet.sock" in str(made.data()["suspended"])
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    restarted = NodeAllocator(reconciler, lambda: None, TIMEOUTS.cri_call)
    restarted.check()
    assert (restarted.allocator.suspended, reconciler.view.rulings.written) == ("", True)
    with koordlet(root):
        restarted.resynced()
        assert "koordinator may give out CPUs, too" in restarted.allocator.suspended


def test_where_it_never_gave_anything_out_its_view_has_the_reason(tmp_path: Path) -> None:
    reconciler = on_a_node(tmp_path)
    ledger_path(reconciler.view.config).unlink()
    made = NodeAllocator(reconciler, lambda: None, TIMEOUTS.cri_call)
    assert made.view() is None
    made.allocator.suspend("koordinator gives out CPUs")
    view = made.view()
    assert view is not None
    assert (view.mode, view.why, view.ledger.grants) == ("off", "koordinator gives out CPUs", {})
    with pytest.raises(UsageError, match="nothing is given out: koordinator gives out CPUs"):
        set_policy(made, {"target": "web", "changes": {"policy": "fixed"}})


def test_what_only_observes_goes_on_beside_another_program(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("n")
    reconciler = on_a_node(root, {"allocate.mode": "observe"})
    with koordlet(root):
        made = NodeAllocator(reconciler, lambda: None, TIMEOUTS.cri_call)
        made.check()
    assert made.allocator.suspended == ""


def test_the_allocators_machine_follows_cpus_that_are_isolated_meanwhile(tmp_path: Path) -> None:
    sys = make_tree(tmp_path / "sys", f"devices/system/cpu/online = {CPUS}\ndevices/system/cpu/isolated =\n")
    reconciler = on_a_node(tmp_path, {"paths.sys": str(sys)})
    made = NodeAllocator(reconciler, lambda: None, TIMEOUTS.cri_call)
    (sys / "devices/system/cpu/isolated").write_text(f"{CPUS.first}\n")
    reconciler.node_state.read_node()
    made.resynced()
    assert made.allocator.machine.isolated == CpuSet((CPUS.first,))


def test_containers_that_came_with_a_cpuset_of_another_plugin_are_named(tmp_path: Path) -> None:
    reconciler = on_a_node(tmp_path)
    made = NodeAllocator(reconciler, lambda: None, TIMEOUTS.cri_call)
    assert made.data()["foreign"] == []
    made.allocator.synchronize(Listed(frozenset((SandboxId("pod"),)), ()))
    made.allocator.decide(Verb.CREATE, RequestedContainer(ContainerId("c"), SandboxId("pod"), "main", "shop", "db",
                                                         cpuset=CpuSet((CPUS.first,))))
    assert made.data()["foreign"] == ["shop/db/main"]
