"""`vmpin uninstall`: what `vmpin install` made is gone, what others made stays, and it can be repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from need import need_root, need_unshare
from newcomers import Machine
from test_install_service import calls, units

from vmpin.cli.main import main
from vmpin.config import loading
from vmpin.feature import Feature
from vmpin.features.installer import oci_hook
from vmpin.features.installer.oci_hook import HookOptions
from vmpin.features.installer.verbs import install_service, uninstall
from vmpin.features.installer.verbs.uninstall import Registrations
from vmpin.host import lock
from vmpin.reconcile import teardown

__all__ = ["units"]
pytest_plugins = ["given_unit"]


@pytest.fixture
def command(units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line on a machine whose engines have no configuration."""
    monkeypatch.setattr(uninstall, "registered", lambda config: Registrations())
    return ["--set", f"paths.run={tmp_path}/run", "--set", f"paths.proc={tmp_path}", "uninstall"]


def run(command: Sequence[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert main([*command]) == code
    return capsys.readouterr().out


def test_the_service_and_the_hook_go_and_so_do_the_directories_made_for_them(
        units: Path, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hooks, before = tmp_path / "made/for/hooks.d", {*tmp_path.iterdir()}
    assert main(["install", "hook", "--hooks-dir", str(hooks)]) == 0
    assert main(["install", "hook", "--hooks-dir", str(hooks)]) == 0, "again: the directories are remembered"
    assert main(["install", "service", "--now"]) == 0
    calls(units)
    capsys.readouterr()
    command += ["--hooks-dir", str(hooks)]
    planned = run([*command, "--dry-run"], capsys)
    assert (hooks / "vmpin-hook").exists()
    assert calls(units) == []
    assert f"would remove {hooks}/vmpin-hook" in planned
    run(command, capsys)
    assert calls(units) == ["disable --now vmpin", "daemon-reload"]
    assert {*tmp_path.iterdir()} - {tmp_path / "calls"} == before
    assert list(units.iterdir()) == []
    assert "nothing to restore" in run(command, capsys)
    assert calls(units) == []


def test_a_directory_with_files_of_others_stays(command: list[str], tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    hooks = tmp_path / "made/hooks.d"
    assert main(["install", "hook", "--hooks-dir", str(hooks)]) == 0
    (hooks.parent / "other").touch()
    run([*command, "--hooks-dir", str(hooks)], capsys)
    assert [*tmp_path.glob("made/*")] == [hooks.parent / "other"]


def test_a_directory_that_a_runtime_is_configured_to_read_stays(
        command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    """podman starts no container without a directory that its hooks_dir names."""
    hooks = tmp_path / "made/hooks.d"
    assert main(["install", "hook", "--hooks-dir", str(hooks)]) == 0
    monkeypatch.setattr(uninstall, "registered", lambda config: Registrations(
        [(path, hooks / "vmpin-hook") for path in hooks.glob("*.json")], named={hooks}))
    assert f"kept {hooks}: a runtime's configuration names it\n" in run(command, capsys)
    assert [*hooks.parent.rglob("*")] == [hooks]


def test_a_base_spec_loses_the_hook_and_the_script_stays_until_containerd_is_restarted(
        command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    script, spec = tmp_path / "lib/vmpin-hook", tmp_path / "spec.json"
    oci_hook.script_operation(script.parent).execute()
    before = {"ociVersion": "1.0.2", "process": {"args": ["sh"]}}
    spec.write_text(json.dumps(oci_hook.with_hook(before, script, HookOptions())))
    monkeypatch.setattr(uninstall, "registered", lambda config: Registrations([(spec, script)]))
    document = json.loads(run([*command, "-o", "json"], capsys))
    assert json.loads(spec.read_text()) == before
    assert script.exists()
    assert document["done"] == [f"write {spec}"]
    assert any(f"rm {script}" in line for line in document["kept"])


@pytest.mark.parametrize("registered_there_too", [False, True])
def test_a_script_in_a_usual_directory_stays_while_a_base_spec_runs_it(
        registered_there_too: bool, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    usual = tmp_path / "hooks.d"
    script, spec = usual / "vmpin-hook", tmp_path / "spec.json"
    if registered_there_too:
        assert main(["install", "hook", "--hooks-dir", str(usual)]) == 0
    else:
        oci_hook.script_operation(usual).execute()
    spec.write_text(json.dumps(oci_hook.with_hook({"ociVersion": "1.0.2"}, script, HookOptions())))
    monkeypatch.setattr(uninstall, "registered", lambda config: Registrations(
        [(spec, script), *((path, script) for path in usual.glob("*.json"))], usual=[usual]))
    assert f"kept {script}: containerd read {spec}" in run(command, capsys)
    assert [*usual.iterdir()] == [script]
    assert json.loads(spec.read_text()) == {"ociVersion": "1.0.2"}


def test_a_unit_that_was_changed_by_hand_stops_it_before_anything_is_done(
        units: Path, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "hook", "--hooks-dir", str(tmp_path / "hooks.d")]) == 0
    assert main(["install", "service"]) == 0
    unit = units / "vmpin.service"
    unit.write_text(unit.read_text().replace("Nice=-10", "Nice=-5"))
    command += ["--hooks-dir", str(tmp_path / "hooks.d")]
    run(command, capsys, code=2)
    assert (tmp_path / "hooks.d/vmpin-hook").exists()
    run([*command, "--force"], capsys)
    assert not unit.exists()


@pytest.fixture
def installed(units: Path, command: list[str], tmp_path: Path) -> list[str]:
    """The command line where everything is installed: a hook with directories made for it, another in a base spec,
    the service, and a run directory."""
    assert main(["install", "hook", "--hooks-dir", str(tmp_path / "made/for/hooks.d")]) == 0
    assert main(["install", "service", "--now"]) == 0
    (tmp_path / "run/status").mkdir(parents=True)
    (tmp_path / "run/spool").mkdir()
    for name in "state.json", "lock", "vmpin.sock", "spool/1.hook":
        (tmp_path / "run" / name).write_text("")
    calls(units)
    return [*command, "--hooks-dir", str(tmp_path / "made/for/hooks.d")]


def test_a_dry_run_prints_what_is_then_done(installed: list[str], units: Path, tmp_path: Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    before = {*tmp_path.rglob("*")}
    capsys.readouterr()
    planned = [line.removeprefix("would ") for line in run([*installed, "--dry-run"], capsys).splitlines()
               if line.startswith("would ")]
    assert ({*tmp_path.rglob("*")}, calls(units)) == (before, [])
    done = run(installed, capsys).splitlines()
    assert [line for line in done if line.startswith(("remove ", "write ", "systemctl "))] == planned
    assert f"remove {tmp_path}/run/state.json" in planned
    gone = before - {*tmp_path.rglob("*")}
    named = {Path(word.removesuffix(",")) for line in planned for word in line.split()}
    assert {path for path in gone if path not in named} == {tmp_path / "run/spool/1.hook"}


#: Before each of these the process is killed in turn (sys.addaudithook).
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree", "subprocess.Popen"}


def killed(command: Sequence[str], change: int) -> bool:
    """Run a command in a child that is killed before a change of the file system. :returns: whether it came to it."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def audit(event: str, _: object) -> None:
            nonlocal count
            count += event in CHANGES
            if event in CHANGES and count > change:
                os.kill(os.getpid(), signal.SIGKILL)

        with open(os.devnull, "w") as sink:
            sys.stdout = sys.stderr = sink
            sys.addaudithook(audit)
            os._exit(main([*command]))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_after_a_kill_before_any_change_it_ends_when_it_is_called_again(
        installed: list[str], command: list[str], units: Path, tmp_path: Path,
        capsys: pytest.CaptureFixture[str]) -> None:
    hooks, change = tmp_path / "made/for/hooks.d", 0
    while killed(installed, change):
        run(installed, capsys)
        assert not (tmp_path / "made").exists(), f"killed before change {change}"
        assert not (tmp_path / "run").exists(), f"killed before change {change}"
        assert list(units.iterdir()) == []
        assert main(["install", "hook", "--hooks-dir", str(hooks)]) == 0
        assert main(["install", "service"]) == 0
        (tmp_path / "run/spool").mkdir(parents=True)
        (tmp_path / "run/state.json").write_text("")
        capsys.readouterr()
        change += 1
    assert change > 8
    assert not (tmp_path / "made").exists()


def test_a_hook_that_another_removal_has_moved_up_is_removed(tmp_path: Path, command: list[str],
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    hooks = tmp_path / "made/for/hooks.d"
    assert main(["install", "hook", "--hooks-dir", str(hooks)]) == 0
    for path in hooks.glob("*.json"):
        path.unlink()
    (hooks / "vmpin-hook").rename(hooks.parent / "vmpin-hook")
    run([*command, "--hooks-dir", str(hooks)], capsys)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["own.yaml", 'a "b" 5%$ \\ c.yaml'])
def test_the_configuration_of_the_service_has_the_run_directory(
        name: str, units: Path, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    file, run_directory = tmp_path / name, tmp_path / "own"
    file.write_text(f"paths: {{run: {run_directory}, proc: {tmp_path}}}\n")
    run_directory.mkdir()
    (run_directory / "state.json").touch()
    assert main(["--config", str(file), "install", "service"]) == 0
    default = tmp_path / "default.yaml"
    default.touch()
    monkeypatch.setattr(loading, "DEFAULT_FILE", default)
    printed = run(["uninstall"], capsys)
    assert f"remove {run_directory}/state.json\n" in printed
    assert f"kept {file}: the configuration\nkept {default}: the configuration\n" in printed
    assert not run_directory.exists()


def test_the_unit_stays_until_all_is_given_back(
        units: Path, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    """It names the configuration, and so the run directory, of the next call."""
    file, unit, run_directory = tmp_path / "own.yaml", units / "vmpin.service", tmp_path / "own"
    file.write_text(f"paths: {{run: {run_directory}, proc: {tmp_path}}}\n")
    run_directory.mkdir()
    (run_directory / "state.json").touch()
    assert main(["--config", str(file), "install", "service"]) == 0
    for possible in False, True:
        calls(units)
        monkeypatch.setattr(teardown, "features", lambda: [Feature(name="x", give_back=lambda _: possible)])  # noqa: B023
        printed = run(["uninstall"], capsys, code=not possible)
        assert (f"kept {unit}: the next `vmpin uninstall` reads it\n" in printed) is not possible
        assert calls(units) == ["disable --now vmpin", *["daemon-reload"] * possible]
        assert unit.exists() is run_directory.exists() is not possible


@pytest.mark.root
def test_an_empty_run_directory_that_is_a_mount_has_nothing_of_others(
        command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_root()
    need_unshare("-m")  # where mounts are permitted
    (tmp_path / "run").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path / "run"], check=True)
    try:
        assert "kept" not in run(command, capsys)
        assert (tmp_path / "run").is_dir()
        (tmp_path / "run/other").touch()
        assert f"kept {tmp_path}/run: what is left there is not vmpin's\n" in run(command, capsys)
    finally:
        subprocess.run(["umount", tmp_path / "run"], check=True)


def test_what_it_leaves_is_named(units: Path, command: list[str], tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    drop_ins, foreign = units / "vmpin.service.d", tmp_path / "run/spool/other"
    drop_ins.mkdir()
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    assert f"kept {drop_ins}: the drop-ins of the service\n" in run([*command, "--dry-run"], capsys)
    for words in command, [*command, "-o", "json"]:
        printed = run(words, capsys)
        assert f"{drop_ins}: the drop-ins of the service" in printed
        assert f"{tmp_path}/run: what is left there is not vmpin's" in printed
    assert foreign.exists()


def test_a_watcher_that_is_no_service_stops_it_before_anything_is_done(
        installed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(lock, "lock_holder", lambda path, proc: os.getpid())
    before = {*tmp_path.rglob("*")}
    for words in installed, [*installed, "--dry-run"]:
        run(words, capsys, code=1)
        assert {*tmp_path.rglob("*")} == before


def test_in_a_chroot_without_sys_nothing_is_left(command: list[str], tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--set", f"paths.sys={tmp_path}/none", *command]
    for words in [*command, "--dry-run"], command:
        run(words, capsys)
        assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/originals.notes").touch()
    run(command, capsys, code=1)
    assert [*(tmp_path / "run").iterdir()] == [tmp_path / "run/originals.notes"], "masks may be on record there"


@pytest.fixture
def words(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line on a machine with a state file, and nothing of the hook and the service."""
    monkeypatch.setattr(uninstall, "_hooks", lambda *_: ([], []))
    monkeypatch.setattr(install_service, "plan_remove", lambda _: [])
    machine.vmm("a")
    machine.resync()
    assert machine.node_state.save()
    return [*(word for key, entry in machine.node_state.config.data().items() if entry["from"] == "flag"
              for word in ("--set", f"{key}={entry['value']}")), "uninstall"]


def test_a_feature_that_cannot_give_back_all_is_exit_code_1(
        machine: Machine, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    state = machine.node_state.config.paths.state_file
    for possible in (False, True):
        monkeypatch.setattr(teardown, "features", lambda: [Feature(name="x", give_back=lambda _: possible)])  # noqa: B023
        assert main(words) == (not possible)
        assert state.exists() is not possible


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_dry_run_has_what_features_would_give_back(
        output: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"move IRQ {number} to CPUs 0-7, was 1" for number in range(100)]
    monkeypatch.setattr(teardown, "features", lambda: [Feature(name="gives", giving_back=lambda _: texts)])
    printed = run([*words, "--dry-run", "-o", output], capsys)
    listed = printed.splitlines() if output == "text" else json.loads(printed)["of_features"]
    assert [line for line in listed if line in texts] == texts
