"""The look at the node (checkup): a whole made-up node, and vmpin's own files on it."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from trees import make_tree

from vmpin.config import loading as configuration
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.facts import ConnectorFacts, NodeFacts, Rights, VmProcess, WatcherFacts
from vmpin.features.doctor.checks import examine
from vmpin.features.doctor.node_checks import cgroups
from vmpin.features.doctor.node_facts import CAPABILITIES, available, collect_facts, kernel, rights, run_directory
from vmpin.host.procfs import Procfs
from vmpin.reconcile import state_file, state_format

SHARE = "opt/kata/share/defaults/kata-containers/runtimes/qemu"
#: A node on which five things are wrong: kernel, kubelet's policy, NRI, Kata's pinning, tuned.
NODE = f"""
    proc/self/status = Name:\tx\\nPid:\t77\\nUid:\t0\t0\t0\t0\\nCapEff:\t000001ffffffffff
    proc/self/mountinfo = 1 0 0:1 / / rw - ext4 x rw
    proc/self/schedstat = 0 0 0
    proc/sys/kernel/osrelease = 6.1.0-37-amd64
    proc/sys/kernel/random/boot_id = 1-2
    proc/cmdline = BOOT_IMAGE=/x isolcpus=2-3
    proc/20/cmdline = /usr/bin/kubelet\\0--config=/etc/kubelet.yaml\\0
    proc/21/cmdline = /usr/bin/containerd\\0
    proc/21/status = Name: containerd\\nCpus_allowed: f\\nCpus_allowed_list: 0-3
    proc/22/cmdline = /usr/bin/python3\\0/usr/sbin/tuned\\0
    sys/devices/system/cpu/online = 0-3
    sys/devices/system/cpu/present = 0-3
    sys/devices/system/cpu/isolated = 2-3
    cgroup/cgroup.controllers = cpuset cpu
    cgroup/cpuset.cpus.effective = 0-3
    kubelet/cpu_manager_state = {{"policyName":"none","defaultCpuSet":"","checksum":0}}
    host/etc/kubelet.yaml = kind: KubeletConfiguration\\ncpuManagerPolicy: static
    host/etc/containerd/config.toml = version = 2\\n[plugins."io.containerd.nri.v1.nri"]\\ndisable = true\\n\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata-qemu]\\nruntime_type = "io.containerd.kata-qemu.v2"\\n\
options = {{ConfigPath = "/{SHARE}/configuration-qemu.toml"}}
    host/{SHARE}/configuration-qemu.toml = [runtime]
    host/{SHARE}/config.d/50.toml = [runtime]\\nenable_vcpus_pinning = true
    host/etc/tuned/active_profile = p
    host/usr/lib/tuned/p/tuned.conf = [scheduler]\\nisolated_cores=2-3
    vc/sbs/s1/persist.json = {{"Config": {{"EnableVCPUsPinning": true}}}}
"""


def made_up(tmp_path: Path, tree: str = NODE, **more: str) -> Config:
    make_tree(tmp_path, tree)
    for path in tmp_path.glob("proc/*/cmdline"):
        path.write_bytes(path.read_bytes().removesuffix(b"\n").replace(b"\\0", b"\0"))
        if not (path.parent / "stat").exists():
            (path.parent / "stat").write_text(f"{path.parent.name} (x) S 1 " + "0 " * 50)
    for key in ("proc", "sys", "cgroup", "kubelet", "kata_go", "kata_rs", "run"):
        name = {"kata_go": "vc", "kata_rs": "kata"}.get(key, key)
        more.setdefault(f"paths.{key}", str(tmp_path / name))
    return configuration.load(None, {}, {"paths.nri": str(tmp_path / "nri.sock"), **more})


def looked(config: Config, root: Path, **more: Any) -> NodeFacts:
    return collect_facts(config, root, WatcherFacts(**more), {}, "no status")


def test_a_made_up_node_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    config = made_up(tmp_path)
    facts = looked(config, tmp_path / "host")
    levels = {finding.check: str(finding.verdict.level) for finding in examine(facts)}
    assert {name for name, level in levels.items() if level == "bad"} == {
        "kubelet", "kata-pinning", "tuned", "watcher"}
    assert {name for name, level in levels.items() if level == "warn"} == {"kernel", "nri", "hooks"}
    assert facts.kernel.parameters == ("BOOT_IMAGE=<left out>", "isolcpus=2-3")
    assert facts.kata[0].dropins == (f"/{SHARE}/config.d/50.toml",)
    assert [sandbox.pins_vcpus for sandbox in facts.kata_sandboxes] == [True]
    assert (facts.rights.pid, facts.rights.uid) == (77, 0)
    assert (facts.engines[0].pid, facts.engines[0].cpus) == (21, CpuSet.parse("0-3"))


def test_the_ages_of_crio_and_of_its_containers_are_read(tmp_path: Path) -> None:
    """Of its own: podman's are none of them, nor are pause containers, which no hook runs for."""
    config = made_up(tmp_path)
    now = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    crio = "/usr/bin/conmon|-b|/run/containers/storage/overlay-containers/c1/userdata|-n|{}|--exit-dir|{}/exits"
    for pid, age, line in ((70, 300, "/usr/bin/crio"), (71, 200, crio.format("k8s_app_web_shop_uid_0", "/run/crio")),
                           (72, 150, crio.format("k8s_POD_web_shop_uid_0", "/run/crio")),
                           (73, 100, crio.format("lucid_euler", "/run/libpod"))):
        at = tmp_path / "proc" / str(pid)
        at.mkdir()
        (at / "cmdline").write_bytes(line.replace("|", "\0").encode() + b"\0")
        start = math.floor(now - age * os.sysconf("SC_CLK_TCK"))  # negative where the machine has just booted
        (at / "stat").write_text(f"{pid} (x) S 1 " + "0 " * 17 + f"{start} " + "0 " * 30)
        (at / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\n")
    (engine,) = (each for each in looked(config, tmp_path / "host").engines if each.name == "crio")
    assert engine.age is not None
    (begun,) = engine.begun
    assert 200 <= begun <= engine.age - 99


def test_a_node_of_which_nothing_can_be_read_is_looked_at_all_the_same(tmp_path: Path) -> None:
    config = made_up(tmp_path, "proc/\nsys/\n")
    facts = looked(config, tmp_path / "gone")
    assert facts.rights.capabilities is None
    assert facts.cpus.trouble
    assert {finding.verdict.level.value for finding in examine(facts)} >= {"unknown"}


def test_the_slice_that_keeps_a_vm_off_the_pool_is_named(tmp_path: Path) -> None:
    """AllowedCPUs= of a slice above the pods: each cgroup below has no more, and is no one's mistake."""
    pods = "cgroup/kubepods.slice"
    config = made_up(tmp_path, f"""{NODE}
        {pods}/cpuset.cpus.effective = 0-2
        {pods}/narrow/cpuset.cpus.effective = 0-1
        {pods}/narrow/vm/cpuset.cpus.effective = 0-1
        {pods}/wide/vm/cpuset.cpus.effective = 0-2
    """)

    def vm(name: str, mask: str, cpus: str) -> dict[str, Any]:
        return {"id": name, "mask": mask, "vmm": {"pid": 1}, "threads": [],
                "cgroup": {"path": f"{tmp_path}/{pods}/{name}/vm", "cpus": cpus}}

    status = {"sandboxes": [vm("narrow", "0-3", "0-1"), vm("wide", "1-2", "0-2"), {
        "id": "away", "mask": None, "vmm": None, "threads": [], "cgroup": None}]}
    facts = collect_facts(config, tmp_path / "host", WatcherFacts(), status)
    assert facts.narrow_cgroups == {
        f"{tmp_path}/{pods}/narrow/vm": (f"{tmp_path}/{pods}", CpuSet.parse("0-2"))}
    lower = collect_facts(config, tmp_path / "host", WatcherFacts(), {"sandboxes": [vm("narrow", "1-2", "0-1")]})
    found = cgroups(lower)
    assert found.level == "warn"
    assert found.evidence[1:] == (f"narrow: mask 1-2, but {tmp_path}/{pods}/narrow has 0-1, as has "
                                  f"{tmp_path}/{pods}/narrow/vm below it",)


def test_this_machine_is_looked_at() -> None:
    facts = looked(configuration.load(None, {}, {}), Path("/"))
    assert facts.kernel.release == os.uname().release
    assert facts.cpus.online
    assert facts.rights.pid == os.getpid()
    assert all(finding.verdict.what for finding in examine(facts))


@pytest.mark.parametrize("raw", ["{", "", '{"policyName": 3}'])
def test_a_checkpoint_that_is_none_is_trouble(tmp_path: Path, raw: str) -> None:
    config = made_up(tmp_path, "proc/\nsys/\n")
    (tmp_path / "kubelet").mkdir()
    (tmp_path / "kubelet" / "cpu_manager_state").write_text(raw)
    point = looked(config, tmp_path).checkpoint
    assert point is not None
    assert (point.policy, bool(point.trouble)) == ("", True)


@pytest.mark.parametrize(("named", "link", "reached"), [
    ("/var/lib/k0s/kubelet", "", False), ("/var/lib/k0s/kubelet", "/var/lib/k0s/kubelet", True),
    ("/kubelet", "", True), ("/gone", "", False)])
def test_the_kubelets_directory_is_held_against_the_configured_one(
        tmp_path: Path, named: str, link: str, reached: bool) -> None:
    """A link, and a mount elsewhere, lead to the same directory."""
    config = made_up(tmp_path, f"proc/7/cmdline = kubelet\\0--root-dir={named}\\0\nsys/\nvar/lib/k0s/kubelet/\n")
    (tmp_path / "kubelet").symlink_to(f"{tmp_path}{link}") if link else (tmp_path / "kubelet").mkdir()
    found = looked(config, tmp_path).kubelet
    assert (found.directory, found.reached) == (named, reached)


def test_a_directory_that_does_not_exist_yet_is_the_configured_one_by_its_name(tmp_path: Path) -> None:
    """A kubelet that names the default itself, before its first start."""
    config = made_up(tmp_path, f"proc/7/cmdline = kubelet\\0--root-dir={tmp_path}/kubelet\\0\nsys/\n")
    assert looked(config, tmp_path).kubelet.reached


@pytest.mark.parametrize("named", ["kubelet", "./x/../kubelet/", "/srv/kubelet/"])
def test_the_kubelets_directory_may_be_relative(tmp_path: Path, named: str) -> None:
    config = made_up(tmp_path, f"proc/7/cmdline = kubelet\\0--root-dir={named}\\0\nsys/\nkubelet/\n")
    (tmp_path / "proc/7/cwd").symlink_to("/srv")
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/kubelet").symlink_to("/kubelet")
    found = looked(config, tmp_path).kubelet
    assert (found.directory, found.reached) == ("/srv/kubelet", True)


def test_the_kubelets_files_may_be_relative(tmp_path: Path) -> None:
    """From its working directory, as its own directory."""
    config = made_up(tmp_path, """
        proc/7/cmdline = kubelet\\0--config=./k.yaml\\0--config-dir\\0k.d\\0
        sys/
        srv/k.yaml = kind: KubeletConfiguration\\ncpuManagerPolicy: static
        srv/k.d/1.conf = kind: KubeletConfiguration\\nreservedSystemCPUs: 0-1
        k.yaml = kind: KubeletConfiguration\\ncpuManagerPolicy: none
    """)
    (tmp_path / "proc/7/cwd").symlink_to("/srv")
    kubelet = looked(config, tmp_path).kubelet
    assert (kubelet.text("cpuManagerPolicy"), kubelet.text("reservedSystemCPUs")) == ("static", "0-1")


def test_a_kubelet_in_a_container_is_read_where_it_runs(tmp_path: Path) -> None:
    """Its files are those that it sees, its directory is the node's."""
    config = made_up(tmp_path, """
        proc/7/cmdline = /kubelet\\0--config=/etc/k.yaml\\0--root-dir=/host/kubelet\\0
        sys/
        proc/7/root/etc/k.yaml = kind: KubeletConfiguration\\ncpuManagerPolicy: static
        etc/k.yaml = kind: KubeletConfiguration\\ncpuManagerPolicy: none
        kubelet/
        proc/1/mountinfo = 21 1 8:1 / / rw - ext4 /dev/sda1 rw
        proc/7/mountinfo = 41 1 0:5 / / rw - overlay o rw\\n42 41 8:1 / /host rw - ext4 /dev/sda1 rw
    """)
    found = looked(config, tmp_path).kubelet
    assert (found.directory, found.reached, found.text("cpuManagerPolicy")) == ("/kubelet", True, "static")


def test_the_processes_of_vms_are_read_for_what_tuned_spares(tmp_path: Path) -> None:
    tree = "proc/30/cgroup = 12:cpuset:/kubepods/pod1\\n0::/x\nproc/33/cgroup = 0::/\nproc/7/cmdline = tuned\n"
    tree += "".join(f"proc/{tid}/status = Tgid:\t{pid}\n" for tid, pid in ((30, 30), (31, 30), (32, 32), (33, 33)))
    config = made_up(tmp_path, f"{tree}sys/\n")
    threads = [{"tid": tid, "name": name, "wanted": wanted} for tid, name, wanted in (
        (30, "qemu-kvm", None), (31, "CPU 0/KVM", "0"), (32, "virtiofsd", None), (33, "vhost-30", "0"))]
    status = {"sandboxes": [{"vmm": {"pid": 30}, "threads": threads}, {"vmm": None, "threads": []}]}
    found = collect_facts(config, tmp_path, WatcherFacts(), status)
    assert found.vm_processes == (VmProcess("qemu-kvm", "12:cpuset:/kubepods/pod1,0::/x", True),
                                  VmProcess("vhost-30", "0::/", False))
    shutil.rmtree(tmp_path / "proc/7")
    assert collect_facts(config, tmp_path, WatcherFacts(), status).vm_processes == ()


def test_tuned_in_a_container_has_files_of_its_own(tmp_path: Path) -> None:
    config = made_up(tmp_path, """
        proc/7/cmdline = /usr/bin/python3\\0/usr/sbin/tuned\\0-l\\0
        proc/8/cmdline = /usr/bin/python3\\0/usr/sbin/tuned\\0-p\\0other\\0
        sys/
        proc/1/mountinfo = 21 1 8:1 / / rw - ext4 /dev/sda1 rw
        proc/7/mountinfo = 41 1 0:5 / / rw - overlay o rw
        proc/7/root/etc/tuned/active_profile = inside
        proc/7/root/etc/tuned/inside/tuned.conf = [scheduler]\\nisolated_cores=1
        etc/tuned/active_profile = node
        etc/tuned/other/tuned.conf = [scheduler]\\nisolated_cores=2
    """)
    assert looked(config, tmp_path).tuned.scheduler["isolated_cores"].value == "1"
    shutil.rmtree(tmp_path / "proc/7")
    assert looked(config, tmp_path).tuned.scheduler["isolated_cores"].value == "2"


# Rights and kernel


def test_rights_are_those_of_the_process_asked_for() -> None:
    own = rights(Procfs(), None, "this command")
    assert (own.pid, own.uid) == (os.getpid(), os.geteuid())
    bits = int(next(line for line in Path("/proc/self/status").read_text().splitlines()
                    if line.startswith("CapEff")).split()[1], 16)
    assert own.capabilities == frozenset(name for bit, name in CAPABILITIES.items() if bits >> bit & 1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert rights(Procfs(), child.pid, "it").pid == child.pid
        assert child.stdin is not None
        child.stdin.close()
    assert rights(Procfs(), child.pid, "it").capabilities is None


@pytest.mark.parametrize(("release", "version"), [("6.18.44-x", (6, 18)), ("5.4", (5, 4)), ("next", None), ("", None)])
def test_a_kernels_version_is_read_from_its_release(tmp_path: Path, release: str,
                                                    version: tuple[int, int] | None) -> None:
    made = kernel(Procfs(make_tree(tmp_path, f"proc/sys/kernel/osrelease = {release}\n") / "proc"), str(tmp_path))
    assert (made.version, made.schedstat, made.kvm_debugfs, made.mshv) == (version, False, False, False)


def test_microsofts_hypervisor_is_known_by_its_device(tmp_path: Path) -> None:
    (tmp_path / "class/misc/mshv").mkdir(parents=True)
    assert kernel(Procfs(tmp_path), str(tmp_path)).mshv


@pytest.mark.parametrize(("found", "why"), [
    (Rights("x", 1, 0, frozenset(), user_ns=True, pid_ns=True), "CAP_NET_ADMIN is missing"),
    (Rights("x", 1, 0, frozenset(("CAP_NET_ADMIN",)), user_ns=True, pid_ns=False), "own pid namespace"),
    (Rights("x", 1, 0, frozenset(("CAP_NET_ADMIN",)), user_ns=False, pid_ns=True), "own user namespace")])
def test_process_events_take_rights(found: Rights, why: str) -> None:
    shown = available(found)
    assert shown.available is False
    assert why in shown.why


def test_a_running_watchers_report_on_process_events_counts(tmp_path: Path) -> None:
    config = made_up(tmp_path, "proc/\nsys/\n")
    sources = [{"name": "new_threads", "up": False, "needed": False, "why": "reported so"}]
    facts = looked(config, tmp_path, state="running", pid=1, about={"sources": sources})
    assert facts.connector == ConnectorFacts(False, "reported so")


# The run directory


@pytest.fixture
def own(tmp_path: Path) -> Config:
    return configuration.load(None, {}, {"paths.run": str(tmp_path / "run")})


def test_a_run_directory_that_is_not_there(own: Config) -> None:
    assert not run_directory(own, Procfs()).exists


def test_the_run_directory_is_described(own: Config) -> None:
    own.paths.run.mkdir(mode=0o755)
    own.paths.run.chmod(0o755)
    own.paths.spool.mkdir()
    old = own.paths.spool / "1.hook"
    old.touch()
    os.utime(old, (time.time() - 100, time.time() - 100))
    (own.paths.spool / "2.hook").touch()
    (own.paths.spool / ".3.hook.tmp").touch()
    state_file.save(own.paths.state_file, Procfs().boot_id(), state_format.SavedState())
    found = run_directory(own, Procfs())
    assert (found.exists, found.uid, found.mode, found.spooled) == (True, os.geteuid(), 0o755, 2)
    assert 99 < found.oldest < 400
    assert found.state_size == own.paths.state_file.stat().st_size
    assert (found.state_trouble, found.set_aside, found.writable, found.read_only) == ("", False, True, False)
    assert found.free > 0
    assert found.file_system != "unknown file system"
    own.paths.state_file.write_text("{")
    (own.paths.run / "state.json.bad").touch()
    found = run_directory(own, Procfs())
    assert "its content is not used" in found.state_trouble
    assert found.set_aside
    assert own.paths.state_file.read_text() == "{", "nothing is set aside by looking"


def test_a_message_that_is_taken_meanwhile_hides_no_other(own: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    own.paths.spool.mkdir(parents=True)
    for name in ("1.hook", "2.hook"):
        (own.paths.spool / name).touch()

    def listed(path: Path) -> list[os.DirEntry[str]]:
        with entries(path) as found:
            there = list(found)
        (own.paths.spool / "1.hook").unlink(missing_ok=True)
        return there

    entries = os.scandir
    monkeypatch.setattr(os, "scandir", listed)
    assert run_directory(own, Procfs()).spooled == 1
