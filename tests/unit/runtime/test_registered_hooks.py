"""Where vmpin's hook is registered, which its own installer registers."""

from __future__ import annotations

import json
from pathlib import Path

from trees import make_tree

from vmpin.domain.facts import Engine, Handler
from vmpin.host.files import Files
from vmpin.install import file_operations, oci_hook
from vmpin.install.oci_hook import HookOptions
from vmpin.runtime.registered_hooks import hooks

STAGES = ("createRuntime", "createContainer", "poststart", "poststop")


def test_what_install_hook_registers_is_found_with_its_reader(tmp_path: Path) -> None:
    directory = tmp_path / "hooks.d"
    oci_hook.install(directory, HookOptions(socket=Path("/run/x/hook.sock"), fail_closed=True))
    (directory / "other.json").write_text('{"hook": {"path": "/bin/true"}, "stages": ["poststop"]}')
    found = hooks(Files("/"), [Engine("crio", hooks_dirs=(str(directory),)), Engine("podman", hooks_dirs=("/none",))])
    assert sorted(hook.file for hook in found) == sorted(str(directory / f"50-vmpin-{stage}.json") for stage in STAGES)
    assert {hook.stages for hook in found} == {(stage,) for stage in STAGES}
    for hook in found:
        assert (hook.script, hook.socket) == (str(directory / "vmpin-hook"), "/run/x/hook.sock")
        assert (hook.fail_closed, hook.broken, hook.read_by) == (True, "", ("crio",))


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


REGISTERED = '{"hook": {"path": "/h/vmpin-hook", "args": ["vmpin-hook", "poststart"]}, "stages": ["poststart"]}'


def test_a_script_that_cannot_be_run_is_said_to_be_so(tmp_path: Path) -> None:
    files = Files(make_tree(tmp_path, f"etc/containers/oci/hooks.d/1.json = {REGISTERED}\n"))
    script = tmp_path / "h" / "vmpin-hook"

    def broken() -> str:
        (hook,) = hooks(files, [])
        return hook.broken

    assert broken() == "is not there"
    script.parent.mkdir()
    script.write_text("#!/usr/bin/python3 -IS\n")
    assert broken() == "is not executable"
    script.chmod(0o755)
    assert broken() == "its interpreter /usr/bin/python3 is not there"
    make_tree(tmp_path, "usr/bin/python3 = x\n")
    assert broken() == ""


def test_one_directory_by_two_names_is_one(tmp_path: Path) -> None:
    make_tree(tmp_path, f"usr/share/containers/oci/hooks.d/1.json = {REGISTERED}\netc/\n")
    (tmp_path / "etc" / "hooks.d").symlink_to("/usr/share/containers/oci/hooks.d")
    (hook,) = hooks(Files(tmp_path), [Engine("crio", hooks_dirs=("/etc/hooks.d",)),
                                      Engine("podman", hooks_dirs=("/usr/share/containers/oci/hooks.d",))])
    assert hook.read_by == ("crio", "podman")


def test_what_is_no_registration_is_passed_over(tmp_path: Path) -> None:
    place = "etc/containers/oci/hooks.d"
    files = Files(make_tree(tmp_path, f"""
        {place}/1.json = not json
        {place}/2.json = []
        {place}/3.json = {{"hook": "x"}}
        {place}/4.json = {{"hook": {{"path": 3}}}}
        {place}/5.txt = {REGISTERED}
        {place}/6.json/ = x
    """))
    spec = Handler("x", "containerd", False, "/c", base_spec="/gone.json")
    assert hooks(files, [Engine("containerd", handlers=(spec,))]) == ()
