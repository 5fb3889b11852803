"""Kata's configurations as its runtimes read them (runtime/kata_config)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from trees import make_tree

from vmpin.domain.facts import Engine, Handler, KataConfig
from vmpin.host.daemons import Program
from vmpin.host.files import Files
from vmpin.runtime.engines import engines
from vmpin.runtime.kata_config import config_path, configurations

DEFAULTS = "/opt/kata/share/defaults/kata-containers"


def found(root: Path, *handlers: Handler) -> list[KataConfig]:
    return list(configurations(Files(root), [Engine("containerd", handlers=handlers)]))


def handler(name: str, path: str = "", program: str = "/opt/kata/bin/containerd-shim-kata-v2") -> Handler:
    return Handler(name, "containerd", True, "/c.toml", program, path)


def values(config: KataConfig) -> dict[str, tuple[object, str]]:
    return {key: (setting.value, setting.file) for key, setting in config.settings.items()}


TREE = f"""
    {DEFAULTS[1:]}/runtimes/qemu/configuration-qemu.toml = [hypervisor.qemu]\\npath = "/q"\\nimage = "/secret"\\n\
default_vcpus = 1\\n\
[runtime]\\nenable_vcpus_pinning = false\\nsandbox_cgroup_only = false\\njaeger_password = "hush"
    {DEFAULTS[1:]}/runtimes/qemu/config.d/20-b.toml = [runtime]\\nenable_vcpus_pinning = false
    {DEFAULTS[1:]}/runtimes/qemu/config.d/10-a = [runtime]\\nenable_vcpus_pinning = true\\n\
[hypervisor.qemu]\\ndefault_maxvcpus = 4
"""


def test_drop_ins_lie_over_the_file_in_the_order_of_their_names(tmp_path: Path) -> None:
    """And nothing is kept but what concerns CPUs."""
    path = f"{DEFAULTS}/runtimes/qemu/configuration-qemu.toml"
    (config,) = found(make_tree(tmp_path, TREE), handler("kata-qemu", path), handler("kata-qemu-2", path))
    dropins = f"{DEFAULTS}/runtimes/qemu/config.d"
    assert (config.path, config.runtime, config.read_by) == (path, "go", ("kata-qemu", "kata-qemu-2"))
    assert config.dropins == (f"{dropins}/10-a", f"{dropins}/20-b.toml")
    assert values(config) == {
        "hypervisor.qemu.path": ("/q", path),
        "hypervisor.qemu.default_vcpus": (1, path), "runtime.sandbox_cgroup_only": (False, path),
        "runtime.enable_vcpus_pinning": (False, f"{dropins}/20-b.toml"),
        "hypervisor.qemu.default_maxvcpus": (4, f"{dropins}/10-a")}


def test_drop_ins_lie_beside_the_file_that_is_meant_in_the_end(tmp_path: Path) -> None:
    """Both runtimes follow the link first: EvalSymlinks, canonicalize."""
    make_tree(tmp_path, """
        opt/real/k.toml = [runtime]
        opt/real/config.d/1 = [runtime]\\nenable_vcpus_pinning = true
        etc/link/config.d/1 = [runtime]\\nenable_vcpus_pinning = false
    """)
    (tmp_path / "etc/link/k.toml").symlink_to("/opt/real/k.toml")
    (config,) = found(tmp_path, handler("kata", "/etc/link/k.toml"))
    assert config.path == "/etc/link/k.toml"
    assert values(config) == {"runtime.enable_vcpus_pinning": (True, "/opt/real/config.d/1")}


def test_a_handler_without_a_path_takes_its_runtimes_default(tmp_path: Path) -> None:
    make_tree(tmp_path, f"""
        usr/share/defaults/kata-containers/configuration.toml = [runtime]
        etc/kata-containers/configuration.toml = [runtime]
        {DEFAULTS[1:]}/runtime-rs/configuration.toml = [runtime]
    """)
    rust = handler("kata-rs", program="/opt/kata/runtime-rs/bin/containerd-shim-kata-v2")
    assert [(config.path, config.runtime, config.read_by) for config in found(tmp_path, handler("kata"), rust)] == [
        ("/etc/kata-containers/configuration.toml", "go", ("kata",)),
        (f"{DEFAULTS}/runtime-rs/configuration.toml", "rs", ("kata-rs",))]
    assert [config.path for config in found(tmp_path, rust)] == [f"{DEFAULTS}/runtime-rs/configuration.toml"]


def test_without_any_handler_all_that_lies_about_is_found_once(tmp_path: Path) -> None:
    make_tree(tmp_path, f"""
        {DEFAULTS[1:]}/configuration-qemu.toml = [runtime]
        {DEFAULTS[1:]}/runtime-rs/runtimes/clh/configuration-clh.toml = [runtime]\\nhypervisor_name = "clh"
        {DEFAULTS[1:]}/custom-runtimes/mine/configuration-qemu.toml = [runtime]\\nhypervisor_name = "qemu"
    """)
    (tmp_path / DEFAULTS[1:] / "configuration.toml").symlink_to("configuration-qemu.toml")
    assert [(config.path.removeprefix(DEFAULTS), config.runtime, config.read_by) for config in found(tmp_path)] == [
        ("/configuration.toml", "go", ("default",)),
        ("/custom-runtimes/mine/configuration-qemu.toml", "rs", ()),
        ("/runtime-rs/runtimes/clh/configuration-clh.toml", "rs", ())]


@pytest.mark.parametrize("text", ["= broken", "a = 1\\na = 2"])
def test_a_file_that_is_no_toml_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    make_tree(tmp_path, f"k.toml = {text}\n")
    (config,) = found(tmp_path, handler("kata", "/k.toml"))
    assert "k.toml: is not TOML" in config.trouble


def test_gos_runtime_ignores_the_case_of_keys_and_a_byte_order_mark(tmp_path: Path) -> None:
    """BurntSushi/toml 1.6; runtime-rs does not ignore case (serde)."""
    make_tree(tmp_path, """
        k.toml = \ufeff[Hypervisor.qemu]\\nDefault_VCPUs = 2\\ndefault_vcpus = 3\\n\
[RUNTIME]\\nEnable_vcpus_Pinning = true
        runtime-rs/k.toml = [Hypervisor.qemu]\\ndefault_vcpus = 3\\n[runtime]\\nEnable_vcpus_pinning = true
    """)
    go, rs = found(tmp_path, handler("go", "/k.toml"), handler("rs", "/runtime-rs/k.toml"))
    assert values(go) == {"hypervisor.qemu.default_vcpus": (3, "/k.toml"),
                          "runtime.enable_vcpus_pinning": (True, "/k.toml")}
    assert values(rs) == {}


def test_a_broken_drop_in_is_named(tmp_path: Path) -> None:
    make_tree(tmp_path, "k.toml = [runtime]\nconfig.d/9.toml = = broken\n")
    (config,) = found(tmp_path, handler("kata", "/k.toml"))
    assert config.trouble.startswith("/config.d/9.toml: is not TOML")


@pytest.mark.parametrize("text", ["hypervisor = 'x'", "hypervisor = 5", "[hypervisor]\\nqemu = 3", "runtime = []",
                                  "[[hypervisor]]\\na = 1"])
def test_what_is_of_another_shape_says_nothing(tmp_path: Path, text: str) -> None:
    make_tree(tmp_path, f"k.toml = {text}\n")
    (config,) = found(tmp_path, handler("kata", "/k.toml"))
    assert (config.settings, config.trouble) == ({}, "")


def test_a_file_that_is_not_there_is_no_configuration(tmp_path: Path) -> None:
    assert found(tmp_path, handler("kata", "/gone.toml")) == []


FEDORA = "usr/share/kata-containers/defaults"


@pytest.mark.parametrize(("places", "program", "path"), [
    ([FEDORA], "/usr/bin/containerd-shim-kata-v2", FEDORA),
    ([FEDORA, "etc/kata-containers"], "/usr/bin/containerd-shim-kata-v2", "etc/kata-containers"),
    (["opt/kata/share/defaults/kata-containers", FEDORA], "/usr/bin/containerd-shim-kata-v2", FEDORA),
    (["opt/kata/share/defaults/kata-containers", FEDORA], "/opt/kata/bin/containerd-shim-kata-v2",
     "opt/kata/share/defaults/kata-containers"),
    (["opt/kata/share/defaults/kata-containers", "opt/kata-dev/share/defaults/kata-containers"],
     "/opt/kata-dev/bin/containerd-shim-kata-v2", "opt/kata-dev/share/defaults/kata-containers"),
    (["opt/kata-dev/share/defaults/kata-containers"], "", "opt/kata-dev/share/defaults/kata-containers"),
    (["usr/local/share/kata-containers"], "/usr/local/bin/containerd-shim-kata-v2", "usr/local/share/kata-containers"),
    (["opt/confidential-containers/share/defaults/kata-containers"], "",
     "opt/confidential-containers/share/defaults/kata-containers"),
    (["snap/kata/1/usr/share/defaults/kata-containers"], "/snap/kata/1/usr/bin/containerd-shim-kata-v2",
     "snap/kata/1/usr/share/defaults/kata-containers")])
@pytest.mark.parametrize("runtime", ["", "/runtime-rs"])
def test_the_default_is_searched_in_etc_then_below_the_shims_prefix_then_elsewhere(
        tmp_path: Path, places: list[str], program: str, path: str, runtime: str) -> None:
    make_tree(tmp_path, "".join(f"{place}{below}/configuration.toml = [runtime]\n"
                                for place in places for below in ("", "/runtime-rs")))
    shim = program.replace("/bin/", f"{runtime}/bin/") if runtime else program
    if runtime and not program:
        return
    assert config_path(Files(tmp_path), handler("k", program=shim)) == f"/{path}{runtime}/configuration.toml"


def test_a_shim_of_runtime_rs_may_have_the_name_of_gos(tmp_path: Path) -> None:
    """Where Kata has the Rust runtime alone, in a directory that is only in containerd's PATH: NixOS."""
    store, default = "/nix/store/x-kata-runtime-4.2.0", "share/defaults/kata-containers/runtime-rs/configuration.toml"
    files = Files(make_tree(tmp_path, f"""
        {store[1:]}/bin/containerd-shim-kata-v2 = x
        {store[1:]}/{default} = [runtime]
        etc/containerd/config.toml = version = 3\\n\
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata]\\nruntime_type = "io.containerd.kata.v2"
    """))
    running = Program(4, "containerd", ["containerd"], {"PATH": f"relative:/gone:{store}/bin"})
    found = engines(files, [running])
    assert [handler.runtime_path for handler in found[0].handlers] == [f"{store}/bin/containerd-shim-kata-v2"]
    assert [(config.path, config.runtime) for config in configurations(files, found)] == [
        (f"{store}/{default}", "rs")]
    assert [handler.runtime_path for handler in engines(files, ())[0].handlers] == [""]


@pytest.mark.parametrize("prefix", ["", "exec env ", "export "])
def test_a_shim_that_is_a_script_names_its_configuration(tmp_path: Path, prefix: str) -> None:
    """As in Kubespray's, in the newer one by `exec env`."""
    make_tree(tmp_path, f"""
        usr/local/bin/containerd-shim-kata-clh-v2 = #!/usr/bin/env bash\\n\
{prefix}KATA_CONF_FILE={DEFAULTS}/configuration-clh.toml {DEFAULTS}/bin/containerd-shim-kata-v2 "$@"
        etc/kata-containers/configuration.toml = [runtime]
        etc/containerd/config.toml = version = 2\\n\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata-clh]\\nruntime_type = "io.containerd.kata-clh.v2"
    """)
    files = Files(tmp_path)
    ((made,),) = (engine.handlers for engine in engines(files, ()))
    assert made.runtime_path == "/usr/local/bin/containerd-shim-kata-clh-v2"
    assert config_path(files, made) == f"{DEFAULTS}/configuration-clh.toml"
    assert config_path(files, replace(made, runtime_path="")) == "/etc/kata-containers/configuration.toml"


@pytest.mark.parametrize(("shim", "option", "path"), [
    ("/opt/kata/bin/containerd-shim-kata-v2", "", "/e.toml"), ("", "", "/e.toml"),
    ("/opt/kata/bin/containerd-shim-kata-v2", "/o.toml", "/o.toml"),
    ("/opt/kata/runtime-rs/bin/containerd-shim-kata-v2", "/o.toml", "/e.toml")])
def test_the_environment_of_a_runtime_names_the_configuration(
        tmp_path: Path, shim: str, option: str, path: str) -> None:
    """The shim inherits it; Go's prefers the option of the handler."""
    files = Files(make_tree(tmp_path, f"""
        etc/kata-containers/configuration.toml = [runtime]
        etc/containerd/config.toml = version = 2\\n\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]\\nruntime_type = "io.containerd.kata.v2"\\n\
runtime_path = "{shim}"\\noptions.ConfigPath = "{option}"
    """))
    program = Program(4, "containerd", ["containerd"], {"KATA_CONF_FILE": "/e.toml"})
    ((made,),) = (engine.handlers for engine in engines(files, [program]))
    assert config_path(files, made) == path
