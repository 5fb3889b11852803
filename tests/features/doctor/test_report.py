"""What a report holds, within which limits (gather)."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from trees import make_tree

from vmpin.config import loading as configuration
from vmpin.cpuset import CpuSet
from vmpin.domain.facts import FoundSetting, WatcherFacts
from vmpin.feature import Feature
from vmpin.features.doctor import report
from vmpin.features.doctor.node_facts import collect_facts
from vmpin.features.doctor.pieces import MANIFEST, Piece, Pieces, plain, write


def packed(pieces: Pieces) -> bytes:
    to = io.BytesIO()
    write(to, pieces.all(), "top", 1_700_000_000)
    return to.getvalue()


def test_an_archive_is_roots_own_and_the_same_each_time() -> None:
    made = Pieces()
    made.add("b/x.txt", "two")
    made.add("a.txt", b"\xff one")
    again = Pieces()
    again.add("a.txt", b"\xff one")
    again.add("b/x.txt", "two")
    assert packed(made) == packed(again)
    with tarfile.open(fileobj=io.BytesIO(packed(made))) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == ["top/a.txt", "top/b/x.txt", f"top/{MANIFEST}"]
        assert {(member.mode, member.uid, member.gid, member.uname, member.mtime) for member in members} == {
            (0o600, 0, 0, "", 1_700_000_000)}
        assert all(member.isreg() for member in members)
        read = archive.extractfile("top/a.txt")
        assert read is not None
        assert read.read() == b"\xff one"


def test_the_manifest_lists_what_is_there_and_what_is_not() -> None:
    made = Pieces()
    made.add("x", "abc")
    made.missing["y"] = "denied"
    found = json.loads(made.all()[-1].data)
    assert found == {"pieces": [{"name": "x", "bytes": 3, "cut": 0, "sha256": hashlib.sha256(b"abc").hexdigest()}],
                     "missing": {"y": "denied"}}


def test_what_is_too_large_is_cut_and_said_to_be() -> None:
    made = Pieces(most=10, largest=4)
    made.add("head", "abcdef")
    made.add("tail", "abcdef", tail=True)
    made.add("rest", "abcdef")
    made.add("none", "abc", tail=True)
    assert made.all()[:-1] == [Piece("head", b"abcd", 2), Piece("none", b"", 3), Piece("rest", b"ab", 4),
                               Piece("tail", b"cdef", 2)]


def test_a_name_that_any_sandbox_may_have_can_be_packed() -> None:
    made = Pieces()
    made.add(f"vms/{'a' * 256}/processes.txt", "x")
    with tarfile.open(fileobj=io.BytesIO(packed(made))) as archive:
        assert archive.getnames()[0] == f"top/vms/{'a' * 256}/processes.txt"


@pytest.mark.parametrize(("value", "made"), [
    (CpuSet.parse("0-3"), "0-3"), (Path("/x"), "/x"), (frozenset("ba"), ["a", "b"]),
    ((1, True, None, 1.5), [1, True, None, 1.5]),
    ({3: FoundSetting(True, "/f")}, {"3": {"value": True, "file": "/f"}})])
def test_values_become_what_json_can_hold(value: object, made: object) -> None:
    assert plain(value) == made
    json.dumps(made)


TREE = """
    proc/self/status = Pid:\t5
    proc/self/mountinfo = 30 20 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\\n31 20 0:28 / /secret rw - nfs hush rw
    proc/sys/kernel/osrelease = 6.12.1
    proc/sys/kernel/random/boot_id = 1
    proc/cmdline = root=/dev/hush nosmt
    proc/9/environ = TOKEN=hush
    proc/9/cmdline = /bin/foreign --password hush
    sys/devices/system/cpu/online = 0-1
    sys/devices/system/node/node0/cpulist = 0-1
    kubelet/cpu_manager_state = {"policyName":"none","defaultCpuSet":""}
    run/state.json = {"crc32":1}
    run/state.json.bad = broken
    run/spool/0001-1.hook = hush
    host/etc/kubernetes/kubelet.conf = kind: Config\\ntoken: hush
    host/etc/rancher/k3s/config.yaml = token: hush
    host/opt/kata/share/defaults/kata-containers/configuration.toml = \
[runtime]\\nenable_vcpus_pinning = true\\njaeger_password = "hush"
"""


def test_a_report_has_everything_but_private_data(tmp_path: Path) -> None:
    make_tree(tmp_path, TREE)
    keys = {f"paths.{name}": str(tmp_path / name) for name in ("proc", "sys", "cgroup", "kubelet", "run")}
    config = configuration.load(None, {}, keys)
    facts = collect_facts(config, tmp_path / "host", WatcherFacts(), {}, "no status to be had")
    pieces = report.collect(config, facts, {"findings": []}, "text\n")
    found = {piece.name: piece.data.decode() for piece in pieces.all()}
    assert list(found) == [
        "README.txt", "kubelet/cpu_manager_state", "node/cgroup-mounts.txt", "node/cpus.txt", "node/kernel.txt",
        "node/topology.json", "vmpin/config.json", "vmpin/doctor.json", "vmpin/doctor.txt", "vmpin/facts.json",
        "vmpin/run.txt", "vmpin/run/state.json.bad", "vmpin/state.json", "vmpin/watcher.json", MANIFEST]
    assert pieces.missing == {"vmpin/status.json": "no status to be had"}
    assert not [name for name, text in found.items() if "hush" in text]
    assert found["node/kernel.txt"].splitlines()[1:] == ["root=<left out>", "nosmt"]
    assert "0001-1.hook" in found["vmpin/run.txt"]
    assert "cgroup2" in found["node/cgroup-mounts.txt"]
    assert "/secret" not in found["node/cgroup-mounts.txt"]
    assert f"{tmp_path}/sys/devices/system/node/node0/cpulist: 0-1" in found["node/cpus.txt"]
    assert '"runtime.enable_vcpus_pinning"' in found["vmpin/facts.json"]
    assert json.loads(found["vmpin/config.json"])["watch.nri"] == {"value": "auto", "from": "default"}


def test_what_another_program_said_in_an_error_is_cleaned(tmp_path: Path) -> None:
    make_tree(tmp_path, TREE)
    config = configuration.load(None, {}, {"paths.proc": str(tmp_path / "proc"), "paths.run": str(tmp_path / "run")})
    said = "cannot pull https://me:hush@registry/x: Authorization: Bearer hush1234"
    facts = collect_facts(config, tmp_path, WatcherFacts(why=said), {"sandboxes": [],
                                                                     "sources": {"nri": {"last_error": said}}})
    pieces = report.collect(config, facts, {"findings": [said]}, f"{said}\n")
    naming = [piece.name for piece in pieces.all() if b"cannot pull" in piece.data]
    assert naming == ["vmpin/doctor.json", "vmpin/doctor.txt", "vmpin/status.json", "vmpin/watcher.json"]
    assert not [piece.name for piece in pieces.all() if b"hush" in piece.data and piece.name.startswith("vmpin/")]


def test_a_vms_lines_by_features_are_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `vmpin status -o wide` has them: gather needs no feature's name."""
    make_tree(tmp_path, TREE)
    monkeypatch.setattr(report, "features", lambda: [Feature(name="without"), Feature(
        name="with", lines=lambda sandbox: [f"seen: {sandbox['seen']}", "token: hush"])])
    config = configuration.load(None, {}, {"paths.proc": str(tmp_path / "proc"), "paths.run": str(tmp_path / "run")})
    status = {"sandboxes": [{"id": "a", "threads": [], "seen": "97 %"}]}
    pieces = report.collect(config, collect_facts(config, tmp_path, WatcherFacts(), status), {}, "")
    (found,) = (piece.data for piece in pieces.all() if piece.name == "vms/a/features.txt")
    assert found == b"seen: 97 %\ntoken: <left out>\n"


def test_a_status_that_cannot_be_used_costs_no_other_piece(tmp_path: Path) -> None:
    make_tree(tmp_path, TREE)
    config = configuration.load(None, {}, {"paths.proc": str(tmp_path / "proc"), "paths.run": str(tmp_path / "run")})
    facts = collect_facts(config, tmp_path, WatcherFacts(), {"sandboxes": [{"id": "a"}]})
    pieces = report.collect(config, facts, {}, "")
    assert set(pieces.missing) >= {"vmpin/explain.txt", "vms"}
    assert {"vmpin/status.json", "vmpin/state.json"} <= {piece.name for piece in pieces.all()}


def test_a_report_of_a_node_without_anything_says_what_is_missing(tmp_path: Path) -> None:
    keys = {f"paths.{name}": str(tmp_path / name) for name in ("proc", "sys", "cgroup", "kubelet", "run")}
    (tmp_path / "proc").mkdir()
    config = configuration.load(None, {}, keys)
    facts = collect_facts(config, tmp_path, WatcherFacts(), {}, "none")
    missing = report.collect(config, facts, {}, "").missing
    assert set(missing) == {"vmpin/status.json", "vmpin/state.json", "kubelet/cpu_manager_state",
                            "node/topology.json", "node/cgroup-mounts.txt"}
