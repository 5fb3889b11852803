"""`vmpin uninstall`: what `vmpin install` made is gone, what others made stays, and it can be repeated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_install_service import calls, units

from vmpin.cli import uninstall
from vmpin.cli.main import main
from vmpin.cli.uninstall import Registrations
from vmpin.install import oci_hook
from vmpin.install.oci_hook import HookOptions

__all__ = ["units"]


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
        [(path, hooks / "vmpin-hook") for path in hooks.glob("*.json")], {hooks}))
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
