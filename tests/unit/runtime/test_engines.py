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


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_runtime_may_keep_nri_to_its_own_plugins(tmp_path: Path, value: str) -> None:
    made = found(tmp_path, f"""
        etc/containerd/config.toml = [plugins."io.containerd.nri.v1.nri"]\\ndisable_connections = {value}
        etc/crio/crio.conf = [crio.nri]\\nnri_disable_connections = {value}
    """)
    assert {name: engine.nri_closed for name, engine in made.items()} == dict.fromkeys(
        ("containerd", "crio"), value == "true")


def test_a_running_containerds_own_flag_says_where_its_configuration_is(tmp_path: Path) -> None:
    tree = "etc/containerd/config.toml = version = 3\nopt/c.toml = version = 2\n"
    made = found(tmp_path, tree, Program(9, "containerd", ["/usr/bin/containerd", "-c", "/opt/c.toml"]))["containerd"]
    assert (made.pid, made.files) == (9, ("/opt/c.toml",))


def test_containerds_disabled_plugins_are_those_of_all_its_files(tmp_path: Path) -> None:
    """Of lists the elements are added, whereas a setting of a later file replaces the earlier one's."""
    made = found(tmp_path, """
        etc/containerd/config.toml = version = 3\\nimports = ["a.toml"]\\n\
disabled_plugins = ["io.containerd.nri.v1.nri"]
        etc/containerd/a.toml = disabled_plugins = ["io.containerd.snapshotter.v1.zfs"]
    """)
    assert made["containerd"].nri is False


@pytest.mark.parametrize("plugin", ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"])
def test_a_containerd_without_cri_is_none_of_the_nodes_engines(tmp_path: Path, plugin: str) -> None:
    """Docker's, and Bottlerocket's for its own containers (host-containerd)."""
    own = Program(3, "containerd", ["containerd", "--config", "/etc/host-containerd/config.toml"])
    made = engines(Files(make_tree(tmp_path, f"""
        etc/host-containerd/config.toml = version = 2\\ndisabled_plugins = ["io.containerd.nri.v1.nri", "{plugin}"]
        etc/containerd/config.toml = version = 3
    """)), [own, Program(4, "containerd", ["containerd"])])
    assert [(engine.pid, engine.nri) for engine in made] == [(4, True)]


def test_containerd_merges_the_imports_of_imports_last(tmp_path: Path) -> None:
    """b.toml is merged before c.toml, which the file before it imports."""
    texts = {"config": 'imports = ["a.toml", "b.toml"]', "a": 'imports = ["./../containerd/c.toml"]',
             "b": "[plugins.'io.containerd.nri.v1.nri']\\nsocket_path = '/b'",
             "c": "[plugins.'io.containerd.nri.v1.nri']\\nsocket_path = '/c'"}
    made = found(tmp_path, "".join(f"etc/containerd/{name}.toml = {text}\n" for name, text in texts.items()))
    assert made["containerd"].nri_socket == "/c"
    assert made["containerd"].files == tuple(f"/etc/containerd/{name}.toml" for name in texts)


def test_containerd_imports_nothing_that_its_configuration_does_not_name(tmp_path: Path) -> None:
    """`containerd config default` prints an import of conf.d, but a file without imports has none (containerd 2.2)."""
    made = found(tmp_path, """
        etc/containerd/config.toml = version = 3
        etc/containerd/conf.d/a.toml = disabled_plugins = ["io.containerd.nri.v1.nri"]
    """)
    assert (made["containerd"].files, made["containerd"].nri) == (("/etc/containerd/config.toml",), True)


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


@pytest.mark.parametrize(("argv", "environment", "directories"), [
    (["--hooks-dir", "/a"], "/e", ("/a",)), (["--hooks-dir=/a", "--hooks-dir=/b"], "", ("/a", "/b")),
    (["--hooks-dir=/a, /b"], "", ("/a", "/b")), ([], "/e,/f", ("/e", "/f"))])
def test_crios_command_line_and_environment_name_its_hook_directories(
        tmp_path: Path, argv: list[str], environment: str, directories: tuple[str, ...]) -> None:
    """In place of the configuration's (CRI-O 1.37's internal/criocli, run with these)."""
    program = Program(4, "crio", ["crio", *argv], {"CONTAINER_HOOKS_DIR": environment})
    assert found(tmp_path, CRIO, program)["crio"].hooks_dirs == directories


def test_a_drop_in_of_crio_replaces_a_handler_as_a_whole(tmp_path: Path) -> None:
    """So does BurntSushi/toml with the values of a map, whose other keys stay; the files of subdirectories count."""
    made = found(tmp_path, """
        etc/crio/crio.conf = [crio.runtime]\\nhooks_dir = ["/h"]\\n[crio.runtime.runtimes.kata]\\n\
runtime_path = "/opt/containerd-shim-kata-v2"\\nruntime_type = "vm"\\nruntime_config_path = "/opt/k.toml"\\n\
[crio.runtime.runtimes.runc]\\nruntime_path = "/usr/bin/runc"\\n\
[crio.runtime.workloads.mgmt]\\nactivation_annotation = "x"\\n[crio.runtime.workloads.mgmt.resources]\\ncpuset = "0-1"
        etc/crio/crio.conf.d/50/x.conf = [crio.runtime.runtimes.kata]\\n\
runtime_path = "/usr/bin/containerd-shim-kata-v2"
        etc/crio/crio.conf.d/99-x = [crio.runtime.workloads.mgmt]\\nactivation_annotation = "x"
    """)["crio"]
    assert [(handler.name, handler.runtime_path, handler.config_path) for handler in made.handlers] == [
        ("kata", "/usr/bin/containerd-shim-kata-v2", ""), ("runc", "/usr/bin/runc", "")]
    assert made.handlers[0].file == "/etc/crio/crio.conf.d/50/x.conf"
    assert (made.workloads, made.hooks_dirs, made.trouble) == ({"mgmt": ""}, ("/h",), ())


def test_a_handler_of_crio_may_inherit_the_default_runtime(tmp_path: Path) -> None:
    made = found(tmp_path, """
        etc/crio/crio.conf = [crio.runtime]\\ndefault_runtime = "kata"\\n[crio.runtime.runtimes.kata]\\n\
runtime_path = "/opt/containerd-shim-kata-v2"\\nruntime_type = "vm"\\nruntime_config_path = "/opt/k.toml"\\n\
[crio.runtime.runtimes.vip]\\ninherit_default_runtime = true\\nruntime_path = "/x"
    """)["crio"]
    assert [(handler.name, handler.kata, handler.config_path) for handler in made.handlers] == [
        ("kata", True, "/opt/k.toml"), ("vip", True, "/opt/k.toml")]


@pytest.mark.parametrize("program", [
    Program(4, "crio", ["crio"], {"CONTAINER_CONFIG": "/srv/c.conf", "CONTAINER_CONFIG_DIR": "/srv/c.d"}),
    Program(4, "crio", ["crio", "--config=/srv/c.conf", "-d", "/srv/c.d"], {"CONTAINER_CONFIG": "/gone"})])
def test_crios_environment_names_its_files_where_no_flag_does(tmp_path: Path, program: Program) -> None:
    made = found(tmp_path, "etc/crio/crio.conf = x = 1\netc/crio/crio.conf.d/a = x = 1\nsrv/c.conf = x = 1\n"
                 "srv/c.d/b = x = 1\n", program)["crio"]
    assert made.files == ("/srv/c.conf", "/srv/c.d/b")


@pytest.mark.parametrize(("line", "environment", "expected"), [
    ("", {}, (False, "/f.sock", False, "/p")), ("--enable-nri", {}, (True, "/f.sock", False, "/p")),
    ("--enable-nri=false --nri-listen=/n.sock", {}, (False, "/n.sock", False, "/p")),
    ("--nri-disable-connections --nri-plugin-dir /q --enable-nri=1", {}, (True, "/f.sock", True, "/q"))])
def test_crios_flags_come_after_its_files(
        tmp_path: Path, line: str, environment: dict[str, str], expected: tuple[object, ...]) -> None:
    made = found(tmp_path, "etc/crio/crio.conf = [crio.nri]\\nenable_nri = false\\nnri_listen = '/f.sock'\\n"
                 "nri_plugin_dir = '/p'\n", Program(4, "crio", ["crio", *line.split()], environment))["crio"]
    assert (made.nri, made.nri_socket, made.nri_closed, made.nri_plugins) == expected


@pytest.mark.parametrize(("line", "environment"), [
    ("--runtimes a:/opt/kata/bin/containerd-shim-kata-v2:/r:vm:true:/c.toml,runc:/x:/r --default-runtime=a", {}),
    ("--runtimes=runc:/x:/r --runtimes=a:/opt/kata/bin/containerd-shim-kata-v2:/r:vm:false:/c.toml:8M", {}),
    ("", {"CONTAINER_RUNTIMES": "runc:/x:/r,bad:/x,a:/opt/kata/bin/containerd-shim-kata-v2:/r:vm::/c.toml"})])
def test_crios_command_line_has_handlers(tmp_path: Path, line: str, environment: dict[str, str]) -> None:
    made = found(tmp_path, "etc/crio/crio.conf = [crio.runtime.runtimes.runc]\\nruntime_path = '/gone'\n",
                 Program(4, "crio", ["crio", *line.split()], environment))["crio"]
    assert {handler.name: (handler.kata, handler.runtime_path, handler.config_path, handler.file)
            for handler in made.handlers} == {
        "a": (True, "/opt/kata/bin/containerd-shim-kata-v2", "/c.toml", "the command line"),
        "runc": (False, "/x", "", "the command line")}


@pytest.mark.parametrize(("text", "handlers"), [
    ('runtimes.vip]\\nruntime_type = "/opt/kata/bin/containerd-shim-kata-v2"',
     [("vip", "/opt/kata/bin/containerd-shim-kata-v2", True)]),
    ('runtimes.cc]\\nruntime_type = "io.containerd.contrast-cc.v2"\\nruntime_path = "/opt/edgeless/shim"\\n'
     'pod_annotations = ["io.katacontainers.*"]', [("cc", "/opt/edgeless/shim", True)]),
    ('runtimes.sv]\\nruntime_type = "io.containerd.runsc.v1"\\npod_annotations = ["dev.gvisor.*"]',
     [("sv", "", False)]),
    ('untrusted_workload_runtime]\\nruntime_type = "io.containerd.kata.v2"', [("untrusted", "", True)]),
    ('default_runtime]\\nruntime_type = "io.containerd.kata-clh.v2"', [("default", "", True)]),
    ('untrusted_workload_runtime]\\nruntime_type = ""', []),
    ('runtimes.vip]\\nruntime_type = "io.containerd.vip.v2"', [("vip", "/usr/bin/containerd-shim-vip-v2", True)])])
def test_the_ways_to_name_a_runtime_of_containerd(
        tmp_path: Path, text: str, handlers: list[tuple[str, str, bool]]) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/containerd-shim-vip-v2").symlink_to("/opt/kata/bin/containerd-shim-kata-v2")
    tree = f'opt/kata/bin/containerd-shim-kata-v2 = x\netc/containerd/config.toml = [plugins.cri.containerd.{text}\n'
    made = found(tmp_path, tree)["containerd"]
    assert [(handler.name, handler.runtime_path, handler.kata) for handler in made.handlers] == handlers


def test_crio_reads_hooks_from_one_directory_unless_configured(tmp_path: Path) -> None:
    """1.37: pkg/config/config.go."""
    made = found(tmp_path, "etc/crio/\n", Program(4, "crio", ["crio"]))
    assert made["crio"].hooks_dirs == ("/usr/share/containers/oci/hooks.d",)


def test_an_empty_list_of_hook_directories_is_none_to_crio(tmp_path: Path) -> None:
    made = found(tmp_path, "etc/crio/crio.conf = [crio.runtime]\\nhooks_dir = []\n")
    assert made["crio"].hooks_dirs == ()


def test_podman_names_where_it_looks_for_hooks(tmp_path: Path) -> None:
    usual = found(tmp_path / "a", "usr/bin/podman = x\n")["podman"]
    assert usual.hooks_dirs == ("/usr/share/containers/oci/hooks.d",)
    own = found(tmp_path / "b", 'etc/containers/containers.conf = [engine]\\nhooks_dir = ["/h"]\n')["podman"]
    assert own.hooks_dirs == ("/h",)


@pytest.mark.parametrize(("first", "second", "expected"), [
    ('["/a", {append=true}]', "", ("/usr/share/containers/oci/hooks.d", "/a")),
    ('["/a"]', '["/b", {append=true}]', ("/a", "/b")), ('["/a"]', '[{append=true}]', ("/a",)),
    ('["/a", {append=true}]', '["/b"]', ("/usr/share/containers/oci/hooks.d", "/a", "/b")),
    ('["/a", {append=true}]', '["/b", {append=false}]', ("/b",)), ('["/a", {}]', '["/b", 3]', ("/b",))])
def test_a_list_of_podmans_may_add_to_earlier_ones(
        tmp_path: Path, first: str, second: str, expected: tuple[str, ...]) -> None:
    """The attribute stays in force until a later file has another."""
    later = f"    etc/containers/containers.conf.d/1.conf = [engine]\\nhooks_dir = {second}\n" if second else ""
    made = found(tmp_path, f"etc/containers/containers.conf = [engine]\\nhooks_dir = {first}\n{later}")
    assert made["podman"].hooks_dirs == expected


def test_podmans_drop_ins_are_sorted_over_all_directories(tmp_path: Path) -> None:
    """Podman 6; of one name the file of the strongest directory counts alone."""
    hooks = '[engine]\\nhooks_dir = ["/%s", {append=true}]'
    made = found(tmp_path, f"etc/containers/containers.conf = [engine]\\nhooks_dir = ['/a']\n"
                 f"usr/share/containers/containers.conf.d/2.conf = {hooks % 'c'}\n"
                 f"usr/share/containers/containers.conf.d/3.conf = {hooks % 'gone'}\n"
                 f"etc/containers/containers.conf.d/1.conf = {hooks % 'b'}\n"
                 f"etc/containers/containers.rootful.conf.d/3.conf = {hooks % 'd'}\n"
                 f"etc/containers/containers.rootless.conf.d/4.conf = {hooks % 'gone'}\n")["podman"]
    assert made.hooks_dirs == ("/a", "/b", "/c", "/d")


def test_a_node_without_any_has_none(tmp_path: Path) -> None:
    assert found(tmp_path, "etc/x = 1\n") == {}
