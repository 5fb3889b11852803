"""The ledger that a watcher left is followed from the first pass on; and absurd files and annotations raise nothing
but the declared errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from absurd_values import absurd_json, absurd_texts, spoil
from newcomers import Machine, sandbox
from saved_states import BOOT

from vmpin.bounded import load_json
from vmpin.domain.events import ContainerSeen, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, ThreadRole
from vmpin.features.allocator.allocate_settings import ledger_path
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish
from vmpin.features.allocator.grants.ledger import Grant, GrantState, Ledger
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.texts.annotation_values import AnnotationError
from vmpin.features.allocator.texts.grant_data import grant_to_data, read_annotation
from vmpin.host import boottime
from vmpin.reconcile.reconciler import Reconciler
from vmpin.reconcile.state_file import MAX_BYTES, sealed
from vmpin.reconcile.state_format import dumps

pytest_plugins = ["given_unit"]


@pytest.mark.parametrize("acts", [True, False])
def test_the_first_pass_places_by_the_ledger_that_was_kept(machine: Machine, acts: bool) -> None:
    own, spare = machine.other, machine.pool
    machine.settings["allocate.mode"] = "on"
    before = machine.fresh().node_state
    grant = Grant(ContainerId("c-a"), sandbox("a"), "main", "default", "a", "uid", CpuWish(), CpuPolicy.EXCLUSIVE,
                  state=GrantState.RUNNING, cpus=own, spare=spare, written=own | spare, vm=True)
    LedgerFile(ledger_path(before.config), before.boot_id).save(Ledger({grant.container: grant}, shared=spare))
    machine.vmm("a")
    reconciler = Reconciler(before.config, acts)
    reconciler.node_state.apply_events([SandboxSeen(sandbox("a"), "oci"), ContainerSeen(
        sandbox("a"), Container(ContainerId("c-a"), cpuset=own | spare), Source.BUNDLE, boottime.now(),
        bundle=str(machine.path))])
    reconciler.resync(act=acts, full=True)
    placement = reconciler.view.placements[sandbox("a")]
    assert placement.others[ThreadRole.SHIM] == spare  # not all CPUs of its cpuset
    assert reconciler.view.node.shared_pool == spare


def test_a_ledger_that_cannot_be_read_stays_as_it_is_until_the_allocator_reads_it(
        machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.settings["allocate.mode"] = "on"
    config = machine.fresh().node_state.config
    ledger = ledger_path(config)
    ledger.write_text("damaged")
    assert not Reconciler(config).node_state.placement_cache.rulings.written
    assert (ledger.read_text(), caplog.text) == ("damaged", "")


def test_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    body = {"version": 1, "boot_id": BOOT, "ledger": {
        "version": 1, "shared": "0-1", "grants": [
            {"container": "c1", "sandbox": "pod", "cpus": "2-3", "policy": "dedicated", "state": "running", "node": 0,
             "amount": [1000, 2000, 100], "wish": {"near": "nic"}}],
        "refused": [{"container": "c2", "sandbox": "pod", "reason": "none", "time_ns": 7, "kind": "request"}]}}

    def load(raw: bytes) -> object:
        path.write_bytes(raw)
        return LedgerFile(path, BOOT).load()

    def seal(text: str) -> bytes:
        try:
            return sealed(dumps(load_json(text)))
        except (ValueError, RecursionError):
            return text.encode("utf-8", "surrogatepass")

    spoil(load, map(seal, absurd_json(body)))
    spoil(load, absurd_texts())


def test_a_grant_that_did_not_change_is_not_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is the same as that of a whole new file."""
    encoded: list[str] = []

    def counted(grant: Grant) -> dict[str, object]:
        encoded.append(grant.container)
        return grant_to_data(grant)

    monkeypatch.setattr("vmpin.features.allocator.texts.grant_data.grant_to_data", counted)
    file = LedgerFile(tmp_path / "ledger", BOOT)
    grants = {
        ContainerId(name): Grant(
            ContainerId(name), sandbox("pod"), name, "ns", "pod", "uid", CpuWish(), CpuPolicy.NONE)
        for name in ("b", "a")}
    file.save(Ledger(grants))
    grants[ContainerId("b")] = grants[ContainerId("b")]._replace(name="new")
    file.save(Ledger(grants))
    assert encoded == ["a", "b", "b"]
    del grants[ContainerId("a")]
    file.save(Ledger(grants))
    assert encoded == ["a", "b", "b"]
    assert file.load() == Ledger(grants)
    again = LedgerFile(tmp_path / "again", BOOT)
    again.save(Ledger(grants))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "ledger").read_bytes()


def test_a_grants_annotation() -> None:
    document = {"v": 1, "policy": "dedicated", "since": 7, "cpus": "2-3", "own": True, "wish": {"near": "nic"}}
    spoil(lambda raw: read_annotation(raw.decode("utf-8", "surrogatepass")), absurd_json(document), AnnotationError)


@pytest.mark.parametrize("document", [{"policy": "x" * 3000}, {"wish": {"kind": "\u202ex" * 500}},
                                      {"wish": {"x" * 3000: 1}}, {"x\x1b" * 500: 1}])
def test_the_message_about_a_grants_annotation_is_short(document: dict[str, object]) -> None:
    """A pod's author can write it, and the message goes into the log."""
    with pytest.raises(AnnotationError) as failed:
        read_annotation(json.dumps({"v": 1, "policy": "exclusive", **document}))
    assert len(str(failed.value)) < 300
    assert str(failed.value).isprintable()


def test_a_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.json"
    path.write_text('{"crc32":1,"body":{}}')
    assert LedgerFile(path, "boot").load() is None
    assert (tmp_path / "ledger.json.bad").exists()
    assert "the checksum is wrong: set aside as ledger.json.bad" in caplog.text


def test_a_file_that_is_no_file_or_too_large_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, aside = tmp_path / "ledger.json", tmp_path / "ledger.json.bad"
    path.touch()
    os.truncate(path, MAX_BYTES + 1)  # without a block of the disk
    assert LedgerFile(path, "boot").load() is None
    assert (path.exists(), aside.stat().st_size) == (False, MAX_BYTES + 1)
    assert f"is larger than {MAX_BYTES} bytes: set aside" in caplog.text
    path.symlink_to("/etc/hostname")
    assert LedgerFile(path, "boot").load() is None
    assert aside.is_symlink()
