"""`default_vcpus` of Kata's configuration files."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from vmpin.host.daemons import Program
from vmpin.host.files import Files
from vmpin.runtime.kata_default_vcpus import KataDefaultVcpus

ETC, OPT = "etc/kata-containers", "opt/kata/share/defaults/kata-containers"


def written(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def section(value: str, name: str = "clh") -> str:
    return f"[hypervisor.{name}]\npath = \"/x\"\ndefault_vcpus = {value}\n"


def test_the_file_of_the_handler_counts_and_else_the_default_one(tmp_path: Path) -> None:
    found = KataDefaultVcpus(Files(tmp_path), 8)
    assert found.of("kata-clh") == 1, "Kata's own, without any file"
    written(tmp_path, f"{OPT}/configuration.toml", section("2", "qemu"))
    assert (found.of("kata"), found.of("kata-clh"), found.of("other")) == (2, 2, 2)
    written(tmp_path, f"{OPT}/runtimes/clh/configuration-clh.toml", section("3"))
    assert (found.of("kata"), found.of("kata-clh")) == (2, 3)
    written(tmp_path, f"{ETC}/configuration.toml", section("4", "qemu"))
    assert (found.of("kata"), found.of("kata-clh")) == (4, 3)


@pytest.mark.parametrize(("value", "expected"), [("0", 1), ("5", 5), ("-1", 8), ("99", 8), ("1.2", 1.2), ("0.5", 0.5),
                                                 ("true", 1), ('"6"', 1), ("1e300", 1), ("inf", 1), ("nan", 1)])
def test_each_value_means_what_it_means_to_kata(value: str, expected: float, tmp_path: Path) -> None:
    written(tmp_path, f"{ETC}/configuration.toml", section(value))
    assert KataDefaultVcpus(Files(tmp_path), 8).of("kata") == expected


def test_a_changed_file_and_a_drop_in_are_read_again(tmp_path: Path) -> None:
    file = written(tmp_path, f"{ETC}/configuration.toml", section("2"))
    found = KataDefaultVcpus(Files(tmp_path), 8)
    assert found.of("kata") == 2
    file.write_text(section("3") + "# longer\n")
    assert found.of("kata") == 3
    written(tmp_path, f"{ETC}/config.d/90.toml", section("4"))
    assert found.of("kata") == 4


def test_a_file_that_is_no_toml_leaves_kata_s_own_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, f"{ETC}/configuration.toml", "[hypervisor")
    with caplog.at_level(logging.WARNING):
        found = KataDefaultVcpus(Files(tmp_path), 8)
        assert (found.of("kata"), found.of("kata")) == (1, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once for each version of the file"


@pytest.mark.parametrize("handler", ["kata-../../../etc", "kata-a/b", "kata-", "", "kata-\0", "kata-" + "x" * 5000])
def test_a_handler_is_no_path(handler: str, tmp_path: Path) -> None:
    assert KataDefaultVcpus(Files(tmp_path), 8).of(handler) == 1


CRI = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes'


def containerd(root: Path, handler: str, config: str, path: str = "etc/containerd/config.toml") -> None:
    written(root, path, f'{CRI}.{handler}]\nruntime_type = "io.containerd.kata.v2"\n{CRI}.{handler}.options]\n'
                        f'ConfigPath = "/{config}"\n')


def test_the_file_that_the_container_runtime_names_for_the_handler_counts(tmp_path: Path) -> None:
    """Whatever the handler is called, and whichever files have its name."""
    written(tmp_path, f"{ETC}/configuration.toml", section("2"))
    written(tmp_path, f"{OPT}/configuration-dev.toml", section("3"))
    written(tmp_path, "opt/kata-dev/own.toml", section("5"))
    written(tmp_path, "opt/kata-dev/config.d/1.toml", section("6"))
    found = KataDefaultVcpus(Files(tmp_path), 8)
    assert (found.of("kata-dev"), found.of("vm")) == (3, 2)
    written(tmp_path, "etc/containerd/config.toml", 'version = 2\nimports = ["/opt/kata-dev/conf/*.toml"]\n')
    containerd(tmp_path, "kata-dev", "opt/kata-dev/own.toml", "opt/kata-dev/conf/kata-deploy.toml")
    assert found.of("kata-dev") == 6
    written(tmp_path, "etc/crio/crio.conf.d/50-kata", '[crio.runtime.runtimes.vm]\nruntime_type = "vm"\n'
            'runtime_path = "/usr/bin/containerd-shim-kata-v2"\nruntime_config_path = "/opt/kata-dev/own.toml"\n')
    assert found.of("vm") == 6
    containerd(tmp_path, "kata-dev", f"{OPT}/configuration-dev.toml", "opt/kata-dev/conf/later.toml")
    assert found.of("kata-dev") == 3


@pytest.mark.parametrize("pattern", ["/etc/containerd/conf.d/*.toml", "conf.d/kata-deploy.toml"])
@pytest.mark.parametrize("there", [True, False])
def test_the_first_file_of_a_directory_of_imports_is_noticed(pattern: str, there: bool, tmp_path: Path) -> None:
    written(tmp_path, "etc/containerd/config.toml", f'version = 2\nimports = ["a\\u0000/*.toml", "{pattern}"]\n')
    if there:
        (tmp_path / "etc/containerd/conf.d").mkdir()
        os.utime(tmp_path / "etc/containerd/conf.d", (1, 1))
    os.utime(tmp_path / "etc/containerd", (1, 1))
    found = KataDefaultVcpus(Files(tmp_path), 8)
    written(tmp_path, "own.toml", section("5"))
    assert found.of("kata-dev") == 1
    containerd(tmp_path, "kata-dev", "own.toml", "etc/containerd/conf.d/kata-deploy.toml")
    os.utime(tmp_path / "etc/containerd", (1, 1))  # another directory's time is no help
    assert found.of("kata-dev") == 5


def test_fedoras_place_and_that_of_a_second_installation_are_searched(tmp_path: Path) -> None:
    written(tmp_path, "opt/kata-dev/share/defaults/kata-containers/runtimes/clh/configuration-clh.toml", section("3"))
    written(tmp_path, "usr/share/kata-containers/defaults/configuration.toml", section("4"))
    found = KataDefaultVcpus(Files(tmp_path), 8)
    assert (found.of("kata"), found.of("kata-clh")) == (4, 3)


@pytest.mark.parametrize("path", ["configuration-qemu.toml", "runtimes/qemu/configuration-qemu.toml",
                                  "configuration-qemu-dev.toml"])
def test_the_handlers_of_a_second_installation_have_its_suffix(path: str, tmp_path: Path) -> None:
    """kata-deploy's MULTI_INSTALL_SUFFIX, for a handler that no configuration here has."""
    written(tmp_path, "opt/kata/share/defaults/kata-containers/configuration-qemu.toml", section("2"))
    written(tmp_path, f"opt/kata-dev/share/defaults/kata-containers/{path}", section("3"))
    found = KataDefaultVcpus(Files(tmp_path), 8)
    assert (found.of("kata-qemu-dev"), found.of("kata-qemu")) == (3, 2)


def test_a_container_runtime_with_another_configuration_is_looked_for_once(tmp_path: Path) -> None:
    containerd(tmp_path, "box", "box.toml", "srv/containerd.toml")
    written(tmp_path, "box.toml", section("7"))
    calls: list[int] = []

    def running() -> list[Program]:
        calls.append(1)
        return [Program(1, "containerd", ["containerd", "--config", "/srv/containerd.toml"])]

    found = KataDefaultVcpus(Files(tmp_path), 8, running)
    assert (found.of("box"), found.of("box"), found.of("other")) == (7, 7, 1)
    assert calls == [1]


@pytest.mark.parametrize(("text", "expected"), [
    ("overhead_vcpus = 0.2\n[runtime]\nhypervisor_name = \"clh\"\nstatic_sandbox_resource_mgmt = true", 200),
    ("overhead_vcpus = 0\n[runtime]\nhypervisor_name = \"clh\"\nstatic_sandbox_resource_mgmt = true", 0),
    ("overhead_vcpus = 0.2\n[runtime]\nhypervisor_name = \"clh\"\nstatic_sandbox_resource_mgmt = false", None),
    ("[runtime]\nhypervisor_name = \"clh\"\nstatic_sandbox_resource_mgmt = true", None),
    ("overhead_vcpus = 0.2\n[runtime]\nstatic_sandbox_resource_mgmt = true", None),
    ("overhead_vcpus = 'x'\n[runtime]\nhypervisor_name = \"clh\"\nstatic_sandbox_resource_mgmt = true", None)])
def test_the_part_of_a_vcpu_is_that_of_runtime_rs_with_static_sizing(
        text: str, expected: int | None, tmp_path: Path) -> None:
    written(tmp_path, f"{ETC}/configuration.toml", f"[hypervisor.clh]\ndefault_vcpus = 1\n{text}\n")
    found = KataDefaultVcpus(Files(tmp_path), 8)
    assert (found.overhead("kata"), found.of("kata")) == (expected, 1)


@pytest.mark.parametrize(("section_of", "name"), [
    ("", 'default_runtime_name = "vip"'), (".default_runtime", 'runtime_type = "io.containerd.kata.v2"')])
def test_a_pod_without_a_runtimeclass_has_the_default_handlers_file(
        section_of: str, name: str, tmp_path: Path) -> None:
    """Kata as the default runtime, as its page containerd-kata.md has it; containerd reports such pods' handler as "".
    A section of its own is a handler by itself (containerd 1.7, pkg/cri/config: ValidatePluginConfig)."""
    written(tmp_path, f"{ETC}/configuration.toml", section("2"))
    written(tmp_path, "own.toml", section("5"))
    main = written(tmp_path, "etc/containerd/config.toml", "version = 2\n")
    containerd(tmp_path, "vip", "own.toml")
    found = KataDefaultVcpus(Files(tmp_path), 8)
    assert (found.of(""), found.of("vip")) == (2, 5)
    table = CRI.removesuffix(".runtimes") + section_of
    options = f'{table}.options]\nConfigPath = "/own.toml"\n' if section_of else ""
    main.write_text(f"{main.read_text()}{table}]\n{name}\n{options}")
    assert (found.of(""), found.of("vip")) == (5, 5)


@pytest.mark.parametrize("program", [
    Program(1, "crio", ["crio"]), Program(1, "crio", ["crio", "--default-runtime=vip"]),
    Program(1, "crio", ["crio"], {"CONTAINER_DEFAULT_RUNTIME": "vip"})])
def test_crios_default_handler_is_named_in_its_configuration_or_beside_it(program: Program, tmp_path: Path) -> None:
    written(tmp_path, "own.toml", section("5"))
    name = 'default_runtime = "vip"\n' if program == Program(1, "crio", ["crio"]) else ""
    written(tmp_path, "etc/crio/crio.conf", f'[crio.runtime]\n{name}[crio.runtime.runtimes.vip]\nruntime_type = "vm"\n'
            'runtime_path = "/usr/bin/containerd-shim-kata-v2"\nruntime_config_path = "/own.toml"\n')
    assert KataDefaultVcpus(Files(tmp_path), 8, lambda: [program]).of("") == 5
