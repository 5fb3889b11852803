"""The command that registers the hook or adds it to a base spec, and what stood there before."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from registered_hooks import DEFAULT_FILES, command, install, load, names

from vmpin.cli.main import main
from vmpin.errors import UsageError
from vmpin.features.installer import file_operations, oci_hook
from vmpin.features.installer.oci_hook import HookOptions

SPEC: dict[str, Any] = {"ociVersion": "1.1.0", "process": {"args": ["sh"]}}


def test_the_hook_is_added_to_a_spec_beside_other_hooks_and_only_once() -> None:
    spec = SPEC | {"hooks": {"poststop": [{"path": "/bin/other"}], "prestart": None}}
    script = Path("/usr/local/libexec/vmpin/vmpin-hook")
    made = oci_hook.with_hook(spec, script, HookOptions(stages=("createRuntime", "poststop")))
    entry = {"path": str(script), "args": ["vmpin-hook", "poststop"], "timeout": 30}
    assert made["hooks"]["poststop"] == [{"path": "/bin/other"}, entry]
    assert set(made["hooks"]) == {"poststop", "createRuntime"}
    assert oci_hook.with_hook(made, script, HookOptions(stages=("createRuntime", "poststop"))) == made
    assert oci_hook.without_hook(made, script) == SPEC | {"hooks": {"poststop": [{"path": "/bin/other"}]}}
    assert spec["hooks"] == {"poststop": [{"path": "/bin/other"}], "prestart": None}


def test_a_spec_with_no_other_hooks_is_left_without_a_hooks_object() -> None:
    made = oci_hook.with_hook(SPEC, Path("/x/vmpin-hook"), HookOptions())
    assert oci_hook.without_hook(made, Path("/x/vmpin-hook")) == SPEC


@pytest.mark.parametrize("spec", [{}, {"ociVersion": 1}, SPEC | {"hooks": [1]},
                                  SPEC | {"hooks": {"prestart": {"a": 1}}}])
def test_what_is_no_spec_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        oci_hook.with_hook(spec, Path("/x"), HookOptions())


def test_the_command_installs_and_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--hooks-dir", str(tmp_path), "--stage", "poststop", "--stage", "poststop", "--deadline", "60000",
                   "--socket", "/run/x.sock", "--spool", "/run/q", "--fail-closed") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [str(tmp_path / "vmpin-hook"), str(tmp_path / "50-vmpin-poststop.json")]
    assert all(word in "\n".join(lines[3:]) for word in ("--hooks-dir", "CRI-O", "containerd"))
    entry = load(tmp_path / "50-vmpin-poststop.json")["hook"]
    assert entry["args"] == ["vmpin-hook", "--socket", "/run/x.sock", "--spool", "/run/q", "--deadline", "60000",
                             "--fail-closed", "poststop"]
    assert entry["timeout"] == 120


def test_a_dry_run_touches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("--hooks-dir", str(tmp_path / "d"), "--dry-run")
    assert capsys.readouterr().out.startswith(f"would write {tmp_path}/d/vmpin-hook\n")
    install(tmp_path / "d", HookOptions())
    command("--hooks-dir", str(tmp_path / "d"), "--dry-run", "--remove")
    assert f"would remove {tmp_path}/d/vmpin-hook\n" in capsys.readouterr().out
    assert names(tmp_path / "d") == DEFAULT_FILES


def test_the_command_removes_and_says_so_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(tmp_path, HookOptions(stages=("poststop",)))
    command("--hooks-dir", str(tmp_path), "--remove", "-o", "json")
    removed = [str(tmp_path / "50-vmpin-poststop.json"), str(tmp_path / "vmpin-hook")]
    assert json.loads(capsys.readouterr().out) == {
        "version": 1, "dry_run": False, "written": [], "removed": removed}
    command("--hooks-dir", str(tmp_path), "--remove")
    assert capsys.readouterr().out == "nothing to do\n"


@pytest.mark.parametrize("more", [[], ["--out", "-"]])
def test_a_base_spec_goes_through_standard_streams(more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(SPEC).encode())))
    command("--base-spec", "-", "--hooks-dir", str(tmp_path / "libexec"), *more)
    shown = capsys.readouterr()
    assert json.loads(shown.out) == oci_hook.with_hook(SPEC, tmp_path / "libexec/vmpin-hook", HookOptions())
    assert shown.err.startswith(f"{tmp_path}/libexec/vmpin-hook\n")
    assert "base_runtime_spec" in shown.err
    assert (names(tmp_path), names(tmp_path / "libexec")) == ({"libexec"}, {"vmpin-hook"})


def test_a_base_spec_is_written_to_a_file_and_cleaned_again(tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.json").write_text(json.dumps(SPEC))
    where = ["--out", str(tmp_path / "out.json"), "--hooks-dir", str(tmp_path / "libexec")]
    command("--base-spec", str(tmp_path / "in.json"), *where)
    assert f'base_runtime_spec = "{tmp_path}/out.json"' in capsys.readouterr().out
    assert set(load(tmp_path / "out.json")["hooks"]) == set(oci_hook.DEFAULT_STAGES)
    command("--base-spec", str(tmp_path / "out.json"), *where, "--remove")
    assert load(tmp_path / "out.json") == SPEC
    assert names(tmp_path / "libexec") == {"vmpin-hook"}


@pytest.mark.parametrize(("args", "why"), [
    ([], "needs --hooks-dir or --base-spec"),
    (["--hooks-dir", "/x", "--out", "/y"], "--out goes with --base-spec"),
    (["--base-spec", "/nonexistent/spec"], "cannot read the OCI spec"),
    (["--base-spec", "/dev/null"], "is not JSON"),
    (["--hooks-dir", "/x", "--deadline", "-5"], "deadline of -5 ms"),
    (["--hooks-dir", "/x", "--remove", "--stage", "poststop"], "--remove takes out every stage"),
])
def test_a_command_that_cannot_be_carried_out_says_why(args: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        command(*args)


@pytest.mark.parametrize("remove", [False, True])
def test_an_edited_spec_keeps_link_owner_mode_and_attributes(tmp_path: Path, remove: bool,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    real = tmp_path / "git" / "base.json"
    real.parent.mkdir()
    real.write_text(json.dumps(SPEC))
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 12345, 23456)
    try:
        os.setxattr(real, "user.note", b"ours")
    except OSError:
        attributes = {}
    else:
        attributes = {"user.note": b"ours"}
    before = real.stat()
    (tmp_path / "one").symlink_to("git/base.json")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    args = ["--hooks-dir", str(tmp_path / "bin"), "--base-spec", str(tmp_path / "two"), "--out", str(tmp_path / "two")]
    assert command(*args) == 0
    assert "hooks" in load(real)
    if remove:
        assert command(*args, "--remove") == 0
        assert load(real) == SPEC
    assert os.readlink(tmp_path / "one") == "git/base.json"
    assert os.readlink(tmp_path / "two") == str(tmp_path / "one")
    after = real.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert {name: os.getxattr(real, name) for name in os.listxattr(real) if name.startswith("user.")} == attributes
    assert names(tmp_path / "git") == {"base.json"}
    capsys.readouterr()


def test_registrations_and_script_written_again_keep_links_and_modes(tmp_path: Path) -> None:
    """A script that lost its x is no hook: that it gets back."""
    at, kept = tmp_path / "hooks.d", tmp_path / "kept"
    install(at, HookOptions())
    kept.mkdir()
    for name in ("vmpin-hook", "50-vmpin-poststop.json"):
        (at / name).rename(kept / name)
        (at / name).symlink_to(kept / name)
        (kept / name).chmod(0o600)
    install(at, HookOptions(deadline_ms=99))
    assert [oct(stat.S_IMODE((kept / name).stat().st_mode)) for name in ("vmpin-hook", "50-vmpin-poststop.json")] == [
        "0o755", "0o600"]
    assert all((at / name).is_symlink() for name in ("vmpin-hook", "50-vmpin-poststop.json"))
    assert "99" in (kept / "50-vmpin-poststop.json").read_text()


def test_a_link_that_leads_nowhere_yet_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("there/base.json")
    file_operations.WriteFile(tmp_path / "link", b"{}").execute()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there/base.json").read_bytes() == b"{}"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="Too many levels"):
        file_operations.WriteFile(tmp_path / "loop", b"{}").execute()


@pytest.mark.root
def test_a_link_of_another_users_is_not_followed(tmp_path: Path) -> None:
    """As in /tmp, where anyone may have put it."""
    victim = tmp_path / "shadow"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(UsageError, match="is a symbolic link of uid 12345's"):
        file_operations.WriteFile(tmp_path / "link", b"{}").execute()
    assert victim.read_text() == "precious"


def test_a_closed_standard_input_is_an_empty_one(tmp_path: Path) -> None:
    words = ["install", "hook", "--base-spec", "-", "--hooks-dir", str(tmp_path)]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "vmpin.cli.main", *words],
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not JSON" in done.stderr


@pytest.mark.parametrize("words", [
    ["--hooks-dir", ""], *(["--base-spec", "spec.json", "--hooks-dir", "lib", "--out", name] for name in ("", ".."))])
def test_what_names_nothing_to_write_is_refused_and_nothing_is_made(
        words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spec.json").write_text('{"ociVersion": "1.1.0"}')
    monkeypatch.chdir(tmp_path)
    assert main(["install", "hook", *words]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["spec.json"]
