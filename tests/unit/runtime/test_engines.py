"""The configurations of containerd, CRI-O and podman (runtime/engines)."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import make_tree

from vmpin.domain.facts import Engine, Handler
from vmpin.host.daemons import Program
from vmpin.host.files import Files
from vmpin.runtime.engines import engines


def found(tmp_path: Path, tree: str, *programs: Program) -> dict[str, Engine]:
    return {engine.name: engine for engine in engines(Files(make_tree(tmp_path, tree)), programs)}


V3 = """
    etc/containerd/config.toml = version = 3\\nimports = ["conf.d/*.toml"]\\n\
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\\nruntime_type = 'io.containerd.runc.v2'\\n\
base_runtime_spec = "/etc/containerd/base.json"\\n\
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata-qemu]\\n\
runtime_type = 'io.containerd.kata-qemu.v2'\\npod_annotations = ["io.katacontainers.*"]\\n\
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata-qemu.options]\\nConfigPath = "/opt/k.toml"
    etc/containerd/conf.d/a.toml = \
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.vm]\\nruntime_type = 'io.containerd.run.kata.v2'
    etc/containerd/conf.d/b.toml = \
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata-qemu.options]\\nConfigPath = "/opt/b.toml"
    etc/containerd/conf.d/broken.toml = = what
    etc/containerd/conf.d/c.txt = not imported
"""


def test_containerd_is_read_with_its_imports_over_it(tmp_path: Path) -> None:
    made = found(tmp_path, V3)["containerd"]
    assert made.files == ("/etc/containerd/config.toml", "/etc/containerd/conf.d/a.toml",
                          "/etc/containerd/conf.d/b.toml")
    assert (made.nri, made.pid) == (True, None)
    assert [(handler.name, handler.kata, handler.config_path, handler.file) for handler in made.handlers] == [
        ("runc", False, "", "/etc/containerd/config.toml"),
        ("kata-qemu", True, "/opt/b.toml", "/etc/containerd/conf.d/b.toml"),
        ("vm", True, "", "/etc/containerd/conf.d/a.toml")]
    assert made.handlers[1].annotations == ("io.katacontainers.*",)
    assert made.handlers[0].base_spec == "/etc/containerd/base.json"
    assert len(made.trouble) == 1
    assert "broken.toml: is not TOML" in made.trouble[0]


@pytest.mark.parametrize(("text", "nri", "socket"), [
    ("version = 2", None, ""), ("version = 3", True, ""),
    ("version = 2\\n[plugins.\"io.containerd.nri.v1.nri\"]\\ndisable = true", False, ""),
    ("version = 2\\n[plugins.\"io.containerd.nri.v1.nri\"]\\ndisable = false\\nsocket_path = \"/s\"", True, "/s"),
    ("version = 3\\ndisabled_plugins = [\"io.containerd.nri.v1.nri\"]", False, ""),
    ("[plugins.cri.containerd.runtimes.kata]\\nruntime_type = \"io.containerd.kata.v2\"", None, "")])
def test_whether_containerd_has_nri(tmp_path: Path, text: str, nri: bool | None, socket: str) -> None:
    made = found(tmp_path, f"etc/containerd/config.toml = {text}\n")["containerd"]
    assert (made.nri, made.nri_socket) == (nri, socket)


def test_a_running_containerds_own_flag_says_where_its_configuration_is(tmp_path: Path) -> None:
    tree = "etc/containerd/config.toml = version = 3\nopt/c.toml = version = 2\n"
    made = found(tmp_path, tree, Program(9, "containerd", ["/usr/bin/containerd", "-c", "/opt/c.toml"]))["containerd"]
    assert (made.pid, made.files) == (9, ("/opt/c.toml",))


def test_a_configuration_that_imports_itself_ends(tmp_path: Path) -> None:
    made = found(tmp_path, 'etc/containerd/config.toml = imports = ["/etc/containerd/*.toml"]\\nversion = 3\n')
    assert made["containerd"].files == ("/etc/containerd/config.toml",)


@pytest.mark.parametrize("text", ["plugins = 3", "[plugins]\\ncri = []", "imports = 7", "version = 'x'",
                                  "[plugins.cri.containerd]\\nruntimes = 'x'", "imports = [\"a\\u0000b\"]",
                                  "[plugins.cri.containerd.runtimes.x]\\noptions = 3\\nruntime_type = 5"])
def test_what_is_of_another_shape_is_no_handler_of_katas(tmp_path: Path, text: str) -> None:
    made = found(tmp_path, f"etc/containerd/config.toml = {text}\n")["containerd"]
    assert not any(handler.kata for handler in made.handlers)


CRIO = """
    etc/crio/crio.conf = [crio.runtime]\\nhooks_dir = ["/etc/h"]\\n[crio.nri]\\nenable_nri = false
    etc/crio/crio.conf.d/99-kata = [crio.runtime.runtimes.kata-qemu]\\n\
runtime_path = "/opt/containerd-shim-kata-v2"\\nruntime_type = "vm"\\nruntime_config_path = "/opt/k.toml"
    etc/crio/crio.conf.d/99-nri = [crio.nri]\\nenable_nri = true\\nnri_listen = "/n.sock"
"""


def test_crio_is_read_with_its_drop_ins(tmp_path: Path) -> None:
    made = found(tmp_path, CRIO, Program(4, "crio", ["crio"]))["crio"]
    assert made.handlers == (Handler("kata-qemu", "crio", True, "/etc/crio/crio.conf.d/99-kata",
                                     "/opt/containerd-shim-kata-v2", "/opt/k.toml", None),)
    assert (made.pid, made.nri, made.nri_socket, made.hooks_dirs) == (4, True, "/n.sock", ("/etc/h",))


def test_crio_reads_hooks_from_one_directory_unless_configured(tmp_path: Path) -> None:
    """1.37: pkg/config/config.go; a flag of its command line changes nothing."""
    made = found(tmp_path, "etc/crio/\n", Program(4, "crio", ["crio", "--hooks-dir", "/etc/containers/oci/hooks.d"]))
    assert made["crio"].hooks_dirs == ("/usr/share/containers/oci/hooks.d",)


def test_podman_names_where_it_looks_for_hooks(tmp_path: Path) -> None:
    usual = found(tmp_path / "a", "usr/bin/podman = x\n")["podman"]
    assert usual.hooks_dirs == ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
    own = found(tmp_path / "b", 'etc/containers/containers.conf = [engine]\\nhooks_dir = ["/h"]\n')["podman"]
    assert own.hooks_dirs == ("/h",)


def test_a_node_without_any_has_none(tmp_path: Path) -> None:
    assert found(tmp_path, "etc/x = 1\n") == {}
