"""Where vmpin's hook is registered, which its own installer registers."""

from __future__ import annotations

from pathlib import Path

from trees import make_tree

from vmpin.domain.facts import Engine, Handler
from vmpin.features.common.registered_hooks import hooks
from vmpin.host.files import Files

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


def test_a_registration_without_stages_has_its_script(tmp_path: Path) -> None:
    files = Files(make_tree(tmp_path, """
        etc/containers/oci/hooks.d/1.json = {"hook": {"path": "/h/vmpin-hook"}, "stages": []}
        etc/containers/oci/hooks.d/2.json = {"hook": {"path": "/h/vmpin-hook"}}
    """))
    assert [(hook.script, hook.stages, hook.broken) for hook in hooks(files, [])] == [
        ("/h/vmpin-hook", (), "is not there")] * 2
