"""Registering the hook: the files, their order, and whose they are."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from registered_hooks import DEFAULT_FILES, command, install, load, names, remove

from vmpin.errors import UsageError, VmpinError
from vmpin.features.installer import oci_hook
from vmpin.features.installer.oci_hook import HookOptions
from vmpin.install import data_files


def test_install_writes_the_script_and_one_registration_a_stage(tmp_path: Path) -> None:
    written = install(tmp_path / "new" / "hooks.d", HookOptions())
    assert {file.name for file in written} == names(tmp_path / "new" / "hooks.d") == DEFAULT_FILES
    assert load(tmp_path / "new" / "hooks.d" / "50-vmpin-poststop.json") == {
        "version": "1.0.0",
        "hook": {"path": str(tmp_path / "new" / "hooks.d" / "vmpin-hook"), "args": ["vmpin-hook", "poststop"],
                 "timeout": 30},
        "when": {"always": True},
        "stages": ["poststop"],
    }


def test_everyone_may_read_the_files_and_run_the_script_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        written = install(tmp_path, HookOptions())
    finally:
        os.umask(before)
    assert [oct(stat.S_IMODE(file.stat().st_mode)) for file in written] == ["0o755"] + ["0o644"] * 4


def test_the_script_is_a_copy_that_runs_with_no_environment(tmp_path: Path) -> None:
    script = install(tmp_path, HookOptions())[0]
    assert not script.is_symlink()
    first, _, rest = script.read_bytes().partition(b"\n")
    assert first == b"#!" + oci_hook.interpreter().encode() + b" -IS"
    assert rest == data_files.path("hooks/vmpin-hook").read_bytes().partition(b"\n")[2]
    assert b"usage: vmpin-hook" in subprocess.run([script, "-h"], capture_output=True, check=True, env={}).stdout


def test_only_what_differs_from_the_default_is_in_the_arguments() -> None:
    options = HookOptions(socket=Path("/s"), spool=Path("/q"), deadline_ms=50, fail_closed=True)
    assert options.args("poststart") == ["vmpin-hook", "--socket", "/s", "--spool", "/q", "--deadline", "50",
                                         "--fail-closed", "poststart"]
    assert HookOptions().args("poststart") == ["vmpin-hook", "poststart"]


def test_the_script_comes_first_and_goes_last(tmp_path: Path) -> None:
    planned = [file.path.name for file in oci_hook.plan_install(tmp_path, HookOptions())]
    assert planned[0] == "vmpin-hook"
    install(tmp_path, HookOptions())
    assert [file.name for file in remove(tmp_path)][-1] == "vmpin-hook"
    assert names(tmp_path) == set()


def test_a_second_run_changes_nothing_but_the_stages_no_longer_wanted(tmp_path: Path) -> None:
    install(tmp_path, HookOptions())
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    install(tmp_path, HookOptions())
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    install(tmp_path, HookOptions(stages=("prestart", "poststop")))
    assert names(tmp_path) == {"vmpin-hook", "50-vmpin-prestart.json", "50-vmpin-poststop.json"}


def test_remove_leaves_what_others_wrote(tmp_path: Path) -> None:
    foreign = {"50-vmpin-prestart.json": '{"hook": {"path": "/bin/true"}}', "60-x.json": "no json", "y.json": "[1]",
               "50-vmpin-startContainer.json": '{"hook": {"path": "vmpin-hook\\u0000"}}'}
    install(tmp_path, HookOptions())
    for name, text in foreign.items():
        (tmp_path / name).write_text(text)
    remove(tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == foreign
    assert remove(tmp_path) == []
    assert remove(tmp_path / "missing") == []


def test_remove_refuses_while_another_registration_points_to_the_script(tmp_path: Path) -> None:
    install(tmp_path, HookOptions())
    other = tmp_path / "10-mine.json"
    other.write_text(json.dumps({"hook": {"path": str(tmp_path / "vmpin-hook")}}))
    with pytest.raises(UsageError, match=r"10-mine\.json points to"):
        remove(tmp_path)
    assert names(tmp_path) == DEFAULT_FILES | {"10-mine.json"}


@pytest.mark.parametrize("name", ["vmpin-hook", "50-vmpin-poststart.json"])
def test_install_overwrites_no_stranger_and_writes_nothing_then(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match="was not written by vmpin"):
        install(tmp_path, HookOptions())
    assert names(tmp_path) == {name}


def test_a_registration_through_another_name_of_the_directory_is_ours(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    install(tmp_path / "alias", HookOptions())
    assert {file.name for file in remove(tmp_path / "real")} == DEFAULT_FILES


def test_a_relative_directory_is_registered_by_its_absolute_path(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install(Path("hooks.d"), HookOptions())
    assert load(tmp_path / "hooks.d/50-vmpin-poststart.json")["hook"]["path"] == str(tmp_path / "hooks.d/vmpin-hook")


@pytest.mark.parametrize("typed", ["hooks.d", "hooks.d/", "./hooks.d", "x/../hooks.d", "{top}/x/../hooks.d",
                                   "{top}/hooks.d/"])
def test_what_was_installed_is_removed_by_any_name_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                    typed: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    where = typed.format(top=tmp_path)
    install(Path(where), HookOptions())
    assert {file.name for file in remove(Path(where))} == DEFAULT_FILES
    assert command("--hooks-dir", where) == command("--hooks-dir", where, "--remove") == 0
    assert names(tmp_path / "hooks.d") == set()


def test_another_hands_registration_is_named_by_a_relative_path_too(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install(Path("d"), HookOptions())
    (tmp_path / "d" / "10-mine.json").write_text(json.dumps({"hook": {"path": str(tmp_path / "d" / "vmpin-hook")}}))
    with pytest.raises(UsageError, match=rf"^{tmp_path}/d/10-mine\.json points to"):
        remove(Path("d"))
    assert names(tmp_path / "d") == DEFAULT_FILES | {"10-mine.json"}


def test_a_link_and_two_dots_lead_to_where_the_kernel_takes_them(tmp_path: Path) -> None:
    (tmp_path / "other" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("other/below")
    command("--hooks-dir", f"{tmp_path}/link/../hooks.d")
    assert names(tmp_path / "other" / "hooks.d") == DEFAULT_FILES
    assert load(tmp_path / "other/hooks.d/50-vmpin-poststop.json")["hook"]["path"] == str(
        tmp_path / "other/hooks.d/vmpin-hook")


def test_nothing_to_remove_and_no_such_directory_are_distinguished(tmp_path: Path,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    command("--hooks-dir", str(tmp_path), "--remove")
    command("--hooks-dir", str(tmp_path / "mistyped"), "--remove")
    assert capsys.readouterr().out == f"nothing to do\nnothing to do: {tmp_path}/mistyped is not there\n"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot read .*/file: Not a directory"):
        command("--hooks-dir", str(tmp_path / "file"), "--remove")


def test_a_script_that_cannot_be_run_is_never_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, HookOptions(stages=("poststop",)))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(oci_hook, "interpreter", lambda: "/nonexistent/python3")
    with pytest.raises(UsageError, match="the hook cannot be run from"):
        install(tmp_path, HookOptions())
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write .*/file/hooks\.d/vmpin-hook"):
        install(tmp_path / "file" / "hooks.d", HookOptions())


@pytest.mark.parametrize(("text", "usable"), [("print(3, 11)", True), ("print(3, 8)", False), ("print(4, 0)", True),
                                              ("print('no')", False), ("raise SystemExit(1)", False)])
def test_the_system_python_is_used_when_it_is_new_enough(tmp_path: Path, text: str, usable: bool) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!{sys.executable}\n{text}\n")
    python.chmod(0o755)
    found = oci_hook.interpreter(python)
    assert (found == str(python)) == usable
    assert usable or (os.path.isabs(found) and os.path.realpath(found) == found)


def test_without_a_system_python_the_one_below_the_venv_is_used(tmp_path: Path) -> None:
    found = Path(oci_hook.interpreter(tmp_path / "none"))
    assert found.exists()
    assert not found.is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix


@pytest.mark.parametrize("python", ["python3", "/opt/my python", "/" + "x" * 300])
def test_an_interpreter_the_kernel_would_not_find_is_refused(python: str) -> None:
    with pytest.raises(UsageError, match="cannot stand in a script's first line"):
        oci_hook.with_interpreter(b"#!/usr/bin/python3 -IS\npass\n", python)


@pytest.mark.parametrize("bad", [{"stages": ()}, {"stages": ("poststarts",)}, {"socket": Path("s")},
                                 {"spool": Path("/a\nb")}, {"deadline_ms": 0}, {"deadline_ms": 1000, "timeout_s": 1},
                                 # with these the script itself, or each connection, would fail
                                 {"deadline_ms": 10**7, "timeout_s": 10**5}, {"socket": Path("/" + "x" * 107)}])
def test_options_that_cannot_work_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as error:
        HookOptions(**bad)
    assert error.value.hint


def test_the_defaults_are_the_defaults_of_the_script() -> None:
    text = data_files.path("hooks/vmpin-hook").read_text()
    assert f'"--socket": "{oci_hook.DEFAULT_SOCKET}"' in text
    assert f'"--spool": "{oci_hook.DEFAULT_SPOOL}"' in text
    assert f'"--deadline": "{oci_hook.DEFAULT_DEADLINE_MS}"' in text
    assert "0 < int(deadline) < 10**7" in text, "as HookOptions permits it"
    assert ", ".join(f'"{stage}"' for stage in oci_hook.STAGES) in text


def test_the_examples_are_what_install_would_write() -> None:
    examples = data_files.path("hooks/hooks.d")
    where = Path("/usr/share/containers/oci/hooks.d")
    wanted = {oci_hook.registration_path(where, stage).name:
              oci_hook.registration(oci_hook.script_path(where), stage, HookOptions())
              for stage in oci_hook.DEFAULT_STAGES}
    assert {file.name: load(file) for file in examples.iterdir()} == wanted
    assert all(file.read_text() == json.dumps(load(file), indent=2) + "\n" for file in examples.iterdir())


@pytest.mark.parametrize(("version", "plugin"), [(2, "io.containerd.grpc.v1.cri"),
                                                 (3, "io.containerd.cri.v1.runtime")])
def test_the_containerd_snippets_name_the_base_spec_of_the_readme(version: int, plugin: str) -> None:
    config = tomllib.loads(data_files.path(f"hooks/containerd-config-v{version}.toml").read_text())
    assert config["version"] == version
    spec = config["plugins"][plugin]["containerd"]["runtimes"]["kata"]["base_runtime_spec"]
    assert spec in data_files.path("hooks/README.md").read_text()


def test_a_resource_is_found_in_a_wheel_and_in_a_checkout_and_not_among_strangers(tmp_path: Path) -> None:
    package = tmp_path / "vmpin"
    (tmp_path / "hooks").mkdir()
    with pytest.raises(VmpinError, match="lacks hooks"):
        data_files.path("hooks", package)
    (tmp_path / "pyproject.toml").touch()
    assert data_files.path("hooks", package) == tmp_path / "hooks"
    (package / "data" / "hooks").mkdir(parents=True)
    assert data_files.path("hooks", package) == package / "data" / "hooks"
