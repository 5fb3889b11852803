"""What `vmpin unpin` prints, its exit code, and what it refuses."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from newcomers import Machine, mask, sandbox

from vmpin.cli.main import main
from vmpin.cli.repin import finish
from vmpin.cli.unpin import print_restored
from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VmThread
from vmpin.errors import LockHeldError
from vmpin.feature import Feature
from vmpin.host.lock import Lock
from vmpin.pinning.apply import Outcome, Result
from vmpin.pinning.original_mask_store import FreeThread
from vmpin.pinning.plan import SetAffinity
from vmpin.reconcile import one_pass, teardown
from vmpin.reconcile.view import NodeView
from vmpin.status.collector import unpinned

pytest_plugins = ["given_unit"]


@pytest.mark.parametrize(("word", "code"), [
    ("taken back", 0), ("nothing to take back", 0), ("nothing is taken back: no process listens", 0),
    ("no answer within 3 s", 1), ("not all is taken back: read-only file system", 1)])
@pytest.mark.parametrize("output", ["text", "json"])
def test_a_guest_that_keeps_its_map_is_exit_code_1(word: str, code: int, output: str,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    outcome = {"operations": [], "guests": {"pod-a": "taken back", "pod-b": word}}
    assert finish(argparse.Namespace(output=output), outcome, "nothing to restore") == code
    assert word in capsys.readouterr().out


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_sandbox_that_does_not_have_all_its_masks_is_exit_code_1(output: str,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(argparse.Namespace(output=output), {"operations": [], "kept": ["pod-a"]}, "nothing to restore") == 1
    printed = capsys.readouterr().out
    assert "pod-a" in printed
    assert "nothing to restore" not in printed


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_feature_that_cannot_give_back_all_is_exit_code_1(
        machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
        output: str) -> None:
    machine.vmm("a")
    machine.resync()
    assert machine.node_state.save()
    words = [*arguments(machine), "unpin", "-o", output, "--all"]
    monkeypatch.setattr(teardown, "features", lambda: [Feature(name="keeps", give_back=lambda _: False)])
    assert main(words) == 1
    printed = capsys.readouterr().out
    assert ("its files stay" in printed) if output == "text" else (json.loads(printed)["gone"] is False)
    assert machine.node_state.config.paths.state_file.exists()
    monkeypatch.setattr(teardown, "features", lambda: [Feature(name="gives", give_back=lambda _: True)])
    assert main(words) == 0
    assert "its files stay" not in capsys.readouterr().out
    assert not machine.node_state.config.paths.state_file.exists()


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("verb", ["unpin", "repin"])
def test_without_a_watcher_features_give_back_what_they_changed_of_the_sandbox(
        machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str,
        settled: bool) -> None:
    machine.vmm("a")
    machine.resync()
    assert machine.node_state.save()
    calls = []

    def settle(view: NodeView, sandboxes: Collection[SandboxId]) -> bool:
        with pytest.raises(LockHeldError), Lock(view.config.paths.lock_file):
            pass
        calls.append((sandboxes, [*view.placements]))
        return settled

    monkeypatch.setattr("vmpin.feature.features", lambda: [Feature(name="keeps", settle=settle)])
    assert main([*arguments(machine), verb, sandbox("a"), "-o", "json"]) == (verb == "unpin" and not settled)
    assert calls == [([sandbox("a")], [] if verb == "unpin" else [sandbox("a")])]
    assert json.loads(capsys.readouterr().out).get("settled", True) is (settled or verb == "repin")


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_dry_run_of_leaving_has_what_features_would_give_back(
        machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
        output: str) -> None:
    texts = [f"move IRQ {number} to CPUs 0-7, was 1" for number in range(100)]
    monkeypatch.setattr(teardown, "features", lambda: [Feature(name="gives", giving_back=lambda _: texts)])
    assert main([*arguments(machine), "unpin", "--dry-run", "-o", output, "--all"]) == 0
    printed = capsys.readouterr().out
    listed = printed.splitlines() if output == "text" else json.loads(printed)["of_features"]
    assert [line for line in listed if line in texts] == texts


@pytest.mark.parametrize("output", ["text", "json"])
def test_leaving_prints_what_features_gave_back(
        machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: str) -> None:
    texts = ["move IRQ 5 (eth0) to CPUs 0-7, was 1", "move IRQ 6 (eth1) to CPUs 0-7, was 1"]

    def give_back(config: object) -> bool:
        del texts[0]  # the other one is refused
        return False

    monkeypatch.setattr(teardown, "features", lambda: [
        Feature(name="gives", giving_back=lambda _: [*texts], give_back=give_back)])
    assert main([*arguments(machine), "unpin", "--all", "-o", output]) == 1
    printed = capsys.readouterr().out
    given_back = ["move IRQ 5 (eth0) to CPUs 0-7, was 1"]
    if output == "json":
        assert json.loads(printed)["of_features"] == given_back
    else:
        assert [line for line in printed.splitlines() if "IRQ" in line] == given_back
        assert "no mask of a thread to restore: no mask set by vmpin is on record" in printed


@pytest.mark.parametrize("name", [
    "state.json", ".state.json.new", "state.json.bad", "originals.json", "hook.sock", "kept.json.bad"])
def test_a_directory_in_the_place_of_a_file_stays_and_is_named_and_the_rest_is_removed(
        machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str) -> None:
    monkeypatch.setattr(teardown, "features", lambda: [
        Feature(name="keeps", files=("books", "kept.json"))])
    machine.vmm("a")
    machine.resync()
    assert machine.node_state.save()
    run = machine.node_state.config.paths.run
    (run / "books").touch()
    (run / name).unlink(missing_ok=True)
    (run / name / "of-another").mkdir(parents=True)
    assert main([*arguments(machine), "unpin", "--all"]) == 1
    printed = capfd.readouterr()
    assert f"{run / name}" in printed.err, printed
    assert "a file cannot be removed" in printed.out
    assert [path.name for path in run.iterdir()] == [name]


def restored(name: str, was: str = "0", got: str = "0-1", cpus: str = "0-1", outcome: Outcome = Outcome.DONE,
             known: bool = True, pod: str = "pod-a", why: str = "") -> Result:
    """The result for a thread of this name. :param cpus: its original mask."""
    operation = (SetAffinity if known else FreeThread)(
        SandboxId(pod), VmThread(ThreadId(7, 1), ThreadRole.EMULATOR, name, 7), CpuSet.parse(cpus), CpuSet.parse(was))
    return Result(operation, outcome, CpuSet.parse(got), why)


def test_only_what_changed_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = unpinned([restored("one"), restored("two", got="0"), restored("three", outcome=Outcome.GONE),
                        restored("four", got="0", outcome=Outcome.REFUSED, why="no"),
                        restored("five", outcome=Outcome.TRIMMED, got="1")], [])
    assert print_restored(argparse.Namespace(output="text"), outcome) == 1
    assert capsys.readouterr().out == (
        "sandbox pod-a:\n  set emulator (thread 7, one) to CPUs 0-1, was 0\n"
        "  set emulator (thread 7, four) to CPUs 0-1, was 0: no\n"
        "  set emulator (thread 7, five) to CPUs 0-1, was 0: the cpuset cgroup leaves 1\n1 sandbox: "
        "2 threads restored; 1 thread already with the original "
        "mask; 1 thread refused by the kernel; 1 thread ended meanwhile\n")
    outcome = unpinned([restored("two", got="0")], [])
    assert print_restored(argparse.Namespace(output="text"), outcome) == 0
    assert capsys.readouterr().out == "nothing to restore: 1 thread already with the original mask\n"
    assert print_restored(argparse.Namespace(output="json"), outcome) == 0
    assert json.loads(capsys.readouterr().out) == outcome
    assert print_restored(argparse.Namespace(output="text"), unpinned([], [])) == 0
    assert capsys.readouterr().out == "nothing to restore: no mask set by vmpin is on record\n"


def test_threads_are_counted_by_what_became_of_their_masks(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = unpinned([restored("one"), restored("two", got="0"), restored("three", known=False),
                        restored("four", known=False), restored("five", got="0", known=False)], [])
    assert print_restored(argparse.Namespace(output="text"), outcome) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "1 sandbox: 1 thread restored; 1 thread already with the original mask; "
        "2 threads with an original mask that is not "
        "known, now on all CPUs that the cgroup allows; 1 thread with an original mask that is not known, already on "
        "all CPUs that the cgroup allows")


def test_a_thread_whose_cgroup_leaves_less_is_not_said_to_have_its_original_mask(
        capsys: pytest.CaptureFixture[str]) -> None:
    """Original 0-7, and its cgroup has 4-5: nothing is to be set, and it runs on 4-5."""
    outcome = unpinned([*(restored("one", cpus="0-7", was=left, got=left, outcome=Outcome.TRIMMED, pod=pod)
                          for left, pod in (("4-5", "pod-a"), ("4-5", "pod-b"), ("6", "pod-a"))),
                        restored("two", got="0")], [])
    assert print_restored(argparse.Namespace(output="text"), outcome) == 0
    assert capsys.readouterr().out == (
        "nothing to restore: 1 thread already with the original mask; 2 threads already on CPUs 4-5: the cpuset "
        "cgroup, or what is online, leaves no others of the original mask 0-7; 1 thread already on CPUs 6: the cpuset "
        "cgroup, or what is online, leaves no others of the original mask 0-7\n")


@pytest.mark.parametrize(("words", "text", "hint"), [
    ([], "no SANDBOX is given", "--every"), (["--dry-run"], "no SANDBOX is given", "--all"),
    (["x", "--every"], "--every goes without a SANDBOX", "vmpin unpin SANDBOX"),
    (["x", "--all"], "--all goes without a SANDBOX", "vmpin unpin SANDBOX"),
    (["--every", "--all"], "--all and --every do not go together", "leaving the node"),
    *((words, "-n goes with a SANDBOX", "vmpin status -n demo") for words in (
        ["--every", "-n", "demo"], ["--all", "-n", "demo"], ["-n", "demo", "repin"]))])
def test_what_is_not_clear_is_refused_before_anything_is_looked_at(words: list[str], text: str, hint: str,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    verb = "repin" if "repin" in words else "unpin"
    assert main(["--set", "paths.run=/no/such/directory", verb, *(word for word in words if word != verb)]) == 2
    printed = capsys.readouterr()
    assert text in printed.err
    assert hint in printed.err
    assert printed.out == ""


def arguments(machine: Machine) -> list[str]:
    values = machine.node_state.config.data()
    return [word for key, entry in values.items() if entry["from"] == "flag"
            for word in ("--set", f"{key}={entry['value']}")]


@pytest.mark.parametrize("which", ["one", "--every", "--all"])
def test_a_dry_run_says_what_the_real_one_does_and_changes_nothing(machine: Machine, which: str) -> None:
    vmm, other = machine.vmm("a"), machine.vmm("b")
    machine.resync()
    assert machine.node_state.save()
    words = [*arguments(machine), "unpin", sandbox("a") if which == "one" else which]
    files = {path: path.read_bytes() for path in machine.node_state.config.paths.run.iterdir() if path.is_file()}

    def run(*more: str) -> list[str]:
        ran = subprocess.run([sys.executable, "-m", "vmpin.cli.main", *words, *more], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    with Lock(machine.node_state.config.paths.lock_file) if which != "one" else Lock(machine.path / "another"):
        planned = run("--dry-run")  # a watcher that runs has the lock
    assert (mask(vmm), mask(other)) == (machine.pool, machine.pool)
    assert planned[-1] == "nothing was changed: this was a dry run"
    assert {path: path.read_bytes() for path in files} == files
    as_data = json.loads("".join(run("--dry-run", "-o", "json")))
    suspended = [sandbox("a"), sandbox("b")][:1 + (which == "--every")]
    assert as_data["suspended"] == ([] if which == "--all" else suspended)
    done = run()
    assert [line for line in planned if "  set " in line] == [line for line in done if "  set " in line]
    assert sorted(entry["what"].partition(": ")[2] for entry in as_data["operations"]) == sorted(
        line.strip() for line in done if "  set " in line)
    assert mask(vmm) == machine.both
    assert mask(other) == (machine.pool if which == "one" else machine.both)
    removed = {line.removeprefix("remove ") for line in planned if line.startswith("remove ")}
    if which == "--all":
        assert str(machine.node_state.config.paths.run) in removed
        assert not any(map(Path.exists, map(Path, removed)))
    else:
        assert removed == set()
        assert run()[0] == "nothing to restore: no mask set by vmpin is on record"
        view, _ = one_pass.plan_unpin(machine.node_state.config, None)
        assert view.sandboxes[sandbox("a")].suspended
        assert view.sandboxes[sandbox("b")].suspended is (which == "--every")
