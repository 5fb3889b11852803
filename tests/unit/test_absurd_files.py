"""Whatever stands in a file that vmpin reads, nothing but its declared errors comes of it.

Each document that a loader takes is spoilt in each of its values by each absurd one: huge numbers, what is no number,
deep nesting, long texts, wrong types, lone surrogates, NUL bytes, huge counts. (Frames: test_wire_fuzz, test_parsing.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from absurd_values import TOML, YAML, absurd_json, absurd_lines, absurd_texts, spoil
from saved_states import BOOT, SAMPLE

from vmpin.bounded import load_json
from vmpin.config import loading
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.errors import ConfigError, SourceError
from vmpin.features.common.kubelet_config import kubelet_config
from vmpin.host.daemons import Program
from vmpin.host.files import Files
from vmpin.host.tuned_profile import tuned_profile
from vmpin.reconcile import state_file
from vmpin.reconcile.state_file import sealed
from vmpin.reconcile.state_format import SavedState, dumps, text_of
from vmpin.runtime.engines import engines
from vmpin.runtime.kata import parse_go, parse_rs
from vmpin.runtime.kata_config import configurations
from vmpin.runtime.kubelet import parse_checkpoint
from vmpin.runtime.oci import HEADER, parse_hook, read_bundle
from vmpin.vmm.arguments import options_of

SID = SandboxId("5a" * 32)

CHECKPOINTS: list[dict[str, Any]] = [
    {"policyName": "static", "defaultCpuSet": "0-3", "entries": {"uid": {"app": "4-5"}}, "checksum": 7},
    {"policyName": "static", "defaultCpuSet": "0-3", "podEntries": {"uid": {"cpuSet": "4"}}, "checksum": 7},
    {"data": "{}", "dataChecksum": 1}]
GO: dict[str, Any] = {
    "HypervisorState": {"UUID": "0a", "Pid": 42}, "AgentState": {"URL": "vsock://77:1024"}, "Config": {
        "EnableVCPUsPinning": False, "ContainerConfigs": [{"ID": "c1", "Annotations": {
            "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "app"},
            "Resources": {"cpu": {"shares": 1024, "cpus": "2-3"}}}]}}
RS: dict[str, Any] = {"resource": {"cgroup_state": {"enable_vcpus_pinning": False}}, "hypervisor": {"pid": None}}
STATE: dict[str, Any] = {
    "ociVersion": "1.0.2", "id": SID, "status": "created", "pid": 7, "bundle": "/run/b", "annotations": {
        "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": "pod"}}


@pytest.mark.parametrize("document", CHECKPOINTS)
def test_the_kubelets_checkpoint(document: dict[str, Any]) -> None:
    spoil(parse_checkpoint, absurd_json(document), SourceError)
    spoil(parse_checkpoint, absurd_texts(), SourceError)


@pytest.mark.parametrize(("document", "parse"), [(GO, parse_go), (RS, parse_rs)])
def test_katas_state(document: dict[str, Any], parse: Callable[[SandboxId, bytes, int], object]) -> None:
    spoil(lambda raw: parse(SID, raw, 7), [*absurd_json(document), *absurd_texts()], SourceError)


def test_a_hooks_state() -> None:
    head = HEADER + b" stage=createRuntime boot=7\n"
    spoil(lambda raw: parse_hook(head + raw), [*absurd_json(STATE), *absurd_texts()], SourceError)
    spoil(parse_hook, [HEADER + f" stage={stage} boot={time}\n{{}}".encode()
                       for stage in ("createRuntime", "poststop", "\ud7ff", "")
                       for time in ("9" * 20, "9" * 5000, "-1", "nan", "²", "")], SourceError)


def test_a_bundles_configuration(tmp_path: Path) -> None:
    def load(raw: bytes) -> object:
        (tmp_path / "config.json").write_bytes(raw)
        return read_bundle(str(tmp_path))

    document = {"annotations": {"a": "b"}, "linux": {"resources": {"cpu": {"cpus": "0-3"}}}}
    spoil(load, [*absurd_json(document), *absurd_texts()], SourceError)


def test_the_state_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    body = json.loads(text_of(BOOT, SAMPLE, {}))

    def load(raw: bytes) -> object:
        path.write_bytes(raw)
        kept, trouble = state_file.load(path, BOOT, set_aside=False)
        assert isinstance(kept, SavedState)
        assert len(trouble) < 1000
        return kept

    def seal(text: str) -> bytes:
        try:
            return sealed(dumps(load_json(text.encode("utf-8", "surrogatepass").decode())))
        except (ValueError, RecursionError):
            return f'{{"crc32":0,"body":{text}}}\n'.encode("utf-8", "surrogatepass")

    spoil(load, map(seal, absurd_json(body)))
    spoil(load, absurd_json({"crc32": 7, "body": {"version": 2}}))
    spoil(load, absurd_texts())


def test_the_notes_of_original_masks(tmp_path: Path) -> None:
    path = tmp_path / "notes"

    def load(raw: bytes) -> object:
        path.write_bytes(raw)
        return state_file.with_notes(path, BOOT, SAMPLE)

    state_file.note(path, BOOT, SandboxId("pod-c"), ThreadId(7, 8), next(iter(SAMPLE.previous.values())).mask)
    spoil(load, [*absurd_json(json.loads(path.read_bytes())), *absurd_texts()])


@pytest.mark.parametrize("document", [
    "watch:\n  resync_seconds: 10\n  only: '*'\npolicy:\n  emulator: 0-1\nguest:\n  via: auto\n"])
def test_vmpins_own_configuration(document: str, tmp_path: Path) -> None:
    path = tmp_path / "vmpin.yaml"

    def load(raw: bytes) -> object:
        path.write_bytes(raw)
        return loading.load(path, {}, {})

    load(document.encode())
    spoil(load, [*absurd_lines(document, YAML, ":"), *absurd_texts()], ConfigError)


def test_the_kubelets_configuration(tmp_path: Path) -> None:
    path = tmp_path / "k.yaml"
    document = ("kind: KubeletConfiguration\ncpuManagerPolicy: static\ncpuManagerReconcilePeriod: 5s\n"
                "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\nkubeReserved: {cpu: 500m}\n")

    def load(raw: bytes) -> object:
        path.write_bytes(raw)
        return repr(kubelet_config(Files(tmp_path), [Program(9, "kubelet", ["/usr/bin/kubelet", "--config=/k.yaml"])]))

    spoil(load, [*absurd_lines(document, YAML, ":"), *absurd_texts()])


@pytest.mark.parametrize(("name", "document"), [
    ("etc/containerd/config.toml",
     "version = 3\nimports = []\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\n"
     "runtime_type = 'io.containerd.kata.v2'\nprivileged_without_host_devices = true\n"
     "pod_annotations = ['io.katacontainers.*']\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n"
     "socket_path = '/run/nri.sock'\n"),
    ("etc/crio/crio.conf",
     "[crio.runtime]\nhooks_dir = ['/x']\nenable_nri = true\n[crio.runtime.runtimes.kata]\n"
     "runtime_path = '/usr/bin/containerd-shim-kata-v2'\nruntime_type = 'vm'\nallowed_annotations = ['a']\n"),
    ("opt/kata/share/defaults/kata-containers/configuration.toml",
     "[hypervisor.qemu]\npath = '/q'\ndefault_vcpus = 1\ndefault_maxvcpus = 4\nenable_annotations = ['a']\n"
     "[runtime]\nsandbox_cgroup_only = true\nstatic_sandbox_resource_mgmt = false\n")])
def test_configurations_of_engines_and_kata(name: str, document: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    other = tmp_path / "etc/containerd/config.toml"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\n"
                     "runtime_type = 'io.containerd.kata.v2'\n")

    def load(raw: bytes) -> object:
        path.write_bytes(raw)
        files = Files(tmp_path)
        found = engines(files, ())
        return repr((found, configurations(files, found)))

    load(document.encode())
    spoil(load, [*absurd_lines(document, TOML, "="), *absurd_texts()])
    spoil(load, [f"{table} = {value}\n".encode() for table in re.findall(r"\[(\w+)", document) for value in TOML])


def test_tuneds_files(tmp_path: Path) -> None:
    profile = tmp_path / "etc/tuned/mine/tuned.conf"
    profile.parent.mkdir(parents=True)
    (tmp_path / "etc/tuned/active_profile").write_text("mine\n")
    document = ("[main]\ninclude = other\n[variables]\nisolated_cores = 2-3\n[scheduler]\nisolated_cores = 2-3\n"
                "enabled = 1\n")

    def load(raw: bytes) -> object:
        profile.write_bytes(raw)
        (tmp_path / "etc/tuned/active_profile").write_bytes(raw if raw.startswith(b"/") else b"mine\n")
        files = Files(tmp_path)
        return repr(tuned_profile(files))

    spoil(load, [*absurd_lines(document, TOML, "="), *absurd_texts(), b"/" * 5000, b"/../../x\0"])


def test_an_option_of_qemu_in_json() -> None:
    document = {"qom-type": "iothread", "id": "a"}
    spoil(lambda raw: options_of(raw.decode("utf-8", "replace"), "id"), absurd_json(document))


def test_a_number_of_base_60_costs_no_more_than_its_length(tmp_path: Path) -> None:
    """YAML 1.1 reads `1:30:00` as one: 300 kB of it took PyYAML seconds."""
    path = tmp_path / "vmpin.yaml"
    for tail in ("", ".5"):
        path.write_text("watch:\n  resync_seconds: 1" + ":30" * 100_000 + tail + "\n")
        with pytest.raises(ConfigError, match=r"a number of base 60 with 30000[13] characters, at most 40"):
            loading.load(path, {}, {})
