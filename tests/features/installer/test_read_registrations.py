"""What the installer registers, as the core reads it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from registered_hooks import install

from vmpin.domain.facts import Engine, Handler
from vmpin.errors import UsageError
from vmpin.features.common.registered_hooks import hooks
from vmpin.features.installer import file_operations, oci_hook
from vmpin.features.installer.oci_hook import HookOptions
from vmpin.host.files import Files

STAGES = ("createRuntime", "createContainer", "poststart", "poststop")


def test_what_install_hook_registers_is_found_with_its_reader(tmp_path: Path) -> None:
    directory = tmp_path / "hooks.d"
    install(directory, HookOptions(socket=Path("/run/x/hook.sock"), fail_closed=True))
    (directory / "other.json").write_text('{"hook": {"path": "/bin/true"}, "stages": ["poststop"]}')
    found = hooks(Files("/"), [Engine("crio", hooks_dirs=(str(directory),)), Engine("podman", hooks_dirs=("/none",))])
    assert sorted(hook.file for hook in found) == sorted(str(directory / f"50-vmpin-{stage}.json") for stage in STAGES)
    assert {hook.stages for hook in found} == {(stage,) for stage in STAGES}
    for hook in found:
        assert (hook.script, hook.socket) == (str(directory / "vmpin-hook"), "/run/x/hook.sock")
        assert (hook.fail_closed, hook.broken, hook.read_by) == (True, "", ("crio",))


@pytest.mark.parametrize(("script", "broken"), [
    (b"", "has no first line #!INTERPRETER"), (b"exit 0\n", "has no first line #!INTERPRETER"),
    (b"#!\n", "has no first line #!INTERPRETER"), (b"\x7fELF\x02", ""),
    (b"#!/nonexistent/sh -x\n", "its interpreter /nonexistent/sh is not there")])
def test_a_script_that_linux_does_not_execute_is_broken(tmp_path: Path, script: bytes, broken: str) -> None:
    """runc then starts no container: exec format error."""
    install(tmp_path, HookOptions(stages=("poststop",)))
    (tmp_path / "vmpin-hook").write_bytes(script)
    (hook,) = hooks(Files("/"), [Engine("podman", hooks_dirs=(str(tmp_path),))])
    assert hook.broken.startswith(broken)
    assert bool(hook.broken) is bool(broken)


def test_a_base_spec_is_found_with_its_handlers(tmp_path: Path) -> None:
    script = tmp_path / "libexec" / "vmpin-hook"
    file_operations.execute([oci_hook.script_operation(script.parent)])
    spec = oci_hook.with_hook({"ociVersion": "1.0.2"}, script, HookOptions())
    (tmp_path / "base.json").write_text(json.dumps(spec))
    handlers = tuple(Handler(name, "containerd", True, "/c", base_spec=str(tmp_path / "base.json"))
                     for name in ("kata", "kata-2"))
    (hook,) = hooks(Files("/"), [Engine("containerd", handlers=handlers)])
    assert (hook.stages, hook.broken) == (STAGES, "")
    assert hook.read_by == ("containerd handler kata", "containerd handler kata-2")
    assert hook.socket == "/run/vmpin/hook.sock"


def test_a_pipe_in_the_place_of_a_registration_is_anothers(tmp_path: Path) -> None:
    install(tmp_path, HookOptions(stages=("poststop",)))
    path = oci_hook.registration_path(tmp_path, "poststop")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="was not written by vmpin"):
        oci_hook.plan_install(tmp_path, HookOptions(stages=("poststop",)))
