"""The interrupts of real NICs under traffic, on exclusive CPUs and moved away from them, also beside irqbalance.

The node's two NICs, eth0 on NUMA node 0 and eth1 on node 1 or the other way round, are on one wire. CPUs 2 and 3 are
exclusive by a kubelet's checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cri_node import CriNode
from network_node import NetworkSpace
from real_containerd import Containerd

from lab.node_tests.machines import Vmpin, Watcher, until
from vmpin.cpuset import CpuSet
from vmpin.features.irqs.interrupt_table import InterruptTable, IrqKind
from vmpin.features.irqs.irq_files import IrqFiles
from vmpin.features.irqs.irqbalance import banned_cpus, irqbalance_sockets
from vmpin.host.procfs import Procfs

EXCLUSIVE, OTHERS = CpuSet.parse("2-3"), CpuSet.parse("0-1,4-7")
FILES = IrqFiles(Procfs(), "/sys")
#: Sends datagrams to the other NIC and waits for each to come back, without end, but not so many that the rest of the
#: emulated node has to wait for them.
_SEND = """\
import socket, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
    made.settimeout(0.2)
    while True:
        try:
            made.sendto(b"x" * 800, ("10.9.0.2", 9))
            made.recv(1000)
        except OSError:
            pass
        time.sleep(0.02)
"""
_ECHO = """\
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
    made.bind(("10.9.0.2", 9))
    while True:
        made.sendto(*made.recvfrom(1000))
"""


@contextlib.contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def traffic() -> Iterator[dict[int, str]]:
    """Datagrams go from one NIC to the other and back. :returns: the NICs' interrupts that carry them, by number."""
    # It comes back by itself, some time after the space of the test before has ended.
    until(Path("/sys/class/net/eth1").exists, "no eth1")
    devices = [Path(f"/sys/class/net/eth{number}/device").resolve().name for number in (0, 1)]
    peer = NetworkSpace()
    try:
        subprocess.run(["ip", "link", "set", "eth1", "netns", str(peer.pid)], check=True)
        for command in ("addr add 10.9.0.1/24 dev eth0", "link set eth0 up"):
            subprocess.run(["ip", *command.split()], check=True)
        for command in ("ip addr add 10.9.0.2/24 dev eth1", "ip link set eth1 up", "ip link set lo up"):
            peer(command)
        with running(*peer.argv(sys.executable, "-c", _ECHO)), running(sys.executable, "-c", _SEND):
            names = {f"{device}-input.0" for device in devices} | {f"{device}-output.0" for device in devices}
            numbers = {row.irq: row.name for row in FILES.interrupts().rows() if row.irq is not None
                       and row.name in names}
            assert len(numbers) == 4
            until(lambda: counted(numbers, CpuSet.parse("0-7"), 0.5) > 10, "no traffic")
            yield numbers
    finally:
        peer.end()
        subprocess.run(["ip", "addr", "flush", "dev", "eth0"], check=False)


def counted(numbers: dict[int, str], cpus: CpuSet, seconds: float) -> int:
    """How many of these interrupts the CPUs take within so many seconds, by /proc/interrupts."""
    before: InterruptTable = FILES.interrupts()
    time.sleep(seconds)
    return sum(growth.grew for growth in FILES.interrupts().grown(before, cpus) if growth.row.irq in numbers)


def on_exclusive(traffic: dict[int, str]) -> dict[str, str]:
    """The devices' interrupts that can be moved and that exclusive CPUs may take: by their masks, and of the NICs by
    the CPU that the controller chose. That of an interrupt which does not come is still the former one."""
    rows = (row for row in FILES.interrupts().rows() if row.irq is not None and row.kind is IrqKind.DEVICE
            and row.name and not FILES.fixed(row.irq))
    cpus = {row.name: FILES.effective(row.irq) if row.irq in traffic else FILES.mask(row.irq) for row in rows
            if row.irq is not None}
    return {name: str(mask) for name, mask in cpus.items() if mask is None or not mask.isdisjoint(EXCLUSIVE)}


def masks() -> dict[int, str]:
    return {number: str(FILES.mask(number)) for number in (*FILES.numbers(), -1)}


@pytest.fixture
def node(vmpin: Vmpin, tmp_path: Path) -> Iterator[Vmpin]:
    kubelet = tmp_path / "kubelet"
    kubelet.mkdir()
    (kubelet / "cpu_manager_state").write_text(json.dumps({
        "policyName": "static", "defaultCpuSet": str(OTHERS), "entries": {"0123-uid": {"web": str(EXCLUSIVE)}},
        "checksum": 0}))
    vmpin.configure(paths__kubelet=str(kubelet), watch__resync_seconds=1, proof__sample_seconds=1, irqs__policy="see")
    before = masks()
    yield vmpin
    for number, cpus in before.items():
        with contextlib.suppress(OSError):
            FILES.write(number, CpuSet.parse(cpus))


def irqs(vmpin: Vmpin) -> dict[str, Any]:
    return dict(vmpin.json("status")["features"]["irqs"])


def lay_on_exclusive(traffic: dict[int, str]) -> dict[int, str]:
    """:returns: all masks then."""
    for number in traffic:
        FILES.write(number, EXCLUSIVE)
    until(lambda: counted(traffic, EXCLUSIVE, 0.5) > 10, "the NICs' interrupts do not come to the exclusive CPUs")
    return masks()


def wait_until_away(traffic: dict[int, str]) -> None:
    until(lambda: not on_exclusive(traffic), lambda: on_exclusive(traffic))
    until(lambda: counted(traffic, EXCLUSIVE, 1.0) == 0, "interrupts still come")


def test_interrupts_leave_exclusive_cpus_and_come_back_after_a_kill(node: Vmpin, watcher: Watcher,
                                                                    traffic: dict[int, str]) -> None:
    originals = lay_on_exclusive(traffic)
    node.configure(irqs__policy="away")
    with watcher:
        wait_until_away(traffic)
        assert FILES.mask(-1) == OTHERS
        watcher.kill()
    assert masks() != originals
    node("unpin", "--all")
    assert masks() == originals
    assert not Path("/run/vmpin/irqs.json").exists()


@pytest.mark.release
def test_interrupts_stay_off_exclusive_cpus_under_traffic_and_each_verb_shows_them(
        node: Vmpin, watcher: Watcher, traffic: dict[int, str]) -> None:
    originals = lay_on_exclusive(traffic)
    print("without: in 5 s", counted(traffic, EXCLUSIVE, 5.0), "on exclusive CPUs,", counted(traffic, OTHERS, 5.0),
          "on others")
    with watcher:
        until(lambda: {interrupt["name"] for cpu in irqs(node)["cpus"] for interrupt in cpu["interrupts"]}
              & {*traffic.values()}, lambda: irqs(node), every=1.0)
        print(node("verify", "--others", "--seconds", "1"))
        assert "interrupts of devices on exclusive CPUs: " in node("doctor", "irqs")
    assert masks() == originals
    node.configure(irqs__policy="away")
    with watcher:
        wait_until_away(traffic)
        on_others = time.monotonic()
        assert counted(traffic, EXCLUSIVE, 60.0) == 0
        assert counted(traffic, OTHERS, 5.0) > 10
        print(f"with away: none in {time.monotonic() - on_others:.0f} s;", json.dumps(irqs(node)["kept"]))
        some = next(iter(traffic))
        FILES.write(some, CpuSet((2,)))
        until(lambda: FILES.mask(some) != CpuSet((2,)), "drift is not repaired")
        # Those without a driver do not come, and are left alone.
        with_driver = [row.irq for row in FILES.interrupts().rows() if row.irq is not None
                       and row.kind is IrqKind.DEVICE]
        assert all(cpus.isdisjoint(EXCLUSIVE) for number in with_driver if not FILES.fixed(number)
                   and (cpus := FILES.mask(number)) is not None)
        assert FILES.mask(-1) == OTHERS
        watcher.kill()
    moved = masks()
    assert moved != originals
    lines = {f"to CPUs {original}, was {moved[number]}" for number, original in originals.items()
             if moved[number] != original}
    for verb in ("unpin", "--all"), ("uninstall",):
        planned = [line for line in node(*verb, "--dry-run").splitlines() if line.startswith("move ")]
        assert {line[line.index("to CPUs"):] for line in planned} == lines
        assert len(planned) == sum(moved[number] != original for number, original in originals.items())
    assert masks() == moved
    node("uninstall")
    assert masks() == originals


def test_what_the_kernel_refuses_is_shown_by_the_files_modes_or_by_its_errors() -> None:
    """Since Linux 6.12 by the modes; before, writing fails with EIO."""
    by_mode, errors = set[int](), dict[int, int | None]()
    for number in FILES.numbers():
        if FILES.fixed(number):
            by_mode.add(number)
        mask = FILES.mask(number)
        assert mask is not None
        try:
            FILES.write(number, mask)
        except OSError as err:
            errors[number] = err.errno
    print("refused:", {row.name: errors[row.irq] for row in FILES.interrupts().rows() if row.irq in errors})
    assert errors
    assert by_mode == (set(errors) if os.environ["VMPIN_LAB_KERNEL"] == "6.12" else set())
    assert {*errors.values()} <= {errno.EIO, errno.EPERM}


@pytest.mark.release
def test_pods_claim_interrupts_and_open_cpus_by_annotations_that_a_real_runtime_reports() -> None:
    """Without a VM: the owner of CPUs may be any pod."""
    originals = masks()
    row = next(row for row in FILES.interrupts().rows(b"-input.0") if row.irq is not None and FILES.node(row.irq) == 0)
    assert row.irq is not None
    number, claim = row.irq, {"irq-affinity.resource-policy.nri.io/container.main": f"claim: ['*{row.name}']"}
    with Containerd() as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": "0-1,4-7"}, irqs={"policy": "away", "honour": "crio,nri-plugins"},
                       watch={"resync_seconds": 1})
        node.connect()
        first = containerd.pod("first", annotations=claim)
        first.container("main", cpus="2")
        until(lambda: FILES.mask(number) == CpuSet((2,)), lambda: f"{FILES.mask(number)}\n{node.log()}")
        second = containerd.pod("second", annotations=claim | {"irq-load-balancing.crio.io": "housekeeping"})
        second.container("main", cpus="3")

        def shown() -> tuple[object, object]:
            irqs = node.status()["features"]["irqs"]
            return irqs["open"], irqs["claimed"]

        until(lambda: shown() == ("3", [number]), lambda: f"{shown()}\n{node.log()}")
        assert FILES.mask(number) == CpuSet((2,)), "the first keeps it"
        assert FILES.mask(-1) == CpuSet.parse("0-1,3-7"), "the second's CPU takes interrupts"
        first.remove()
        until(lambda: FILES.mask(number) == CpuSet((3,)), lambda: f"{FILES.mask(number)}\n{node.log()}")
        second.remove()
        until(lambda: str(FILES.mask(number)) == originals[number], lambda: f"{FILES.mask(number)}\n{node.log()}")
        node.stop()
        assert node.cli("unpin", "--all").returncode == 0
    assert masks() == originals


@pytest.mark.release
def test_irqbalance_leaves_exclusive_cpus_alone_and_then_as_before(
        node: Vmpin, watcher: Watcher, traffic: dict[int, str]) -> None:
    directory = Path("/run/irqbalance")
    directory.mkdir(exist_ok=True)
    with running("/usr/sbin/irqbalance", "--foreground", "--interval", "1"):
        until(irqbalance_sockets, "irqbalance has no socket")
        (path,) = irqbalance_sockets()
        until(lambda: banned_cpus(path) == CpuSet(), "irqbalance does not answer")
        node.configure(irqs__policy="see")
        with watcher:
            assert "irqbalance may move interrupts to exclusive CPUs 2-3" in node("doctor", "irqbalance")
        node.configure(irqs__policy="away")
        with watcher:
            until(lambda: banned_cpus(path) == EXCLUSIVE, lambda: banned_cpus(path))
            assert node("doctor", "irqbalance").startswith("ok ")
            until(lambda: not on_exclusive(traffic), lambda: on_exclusive(traffic))
            before = masks()
            assert counted(traffic, EXCLUSIVE, 60.0) == 0
            print("irqbalance moved meanwhile", sum(masks()[number] != cpus for number, cpus in before.items()))
            assert irqs(node)["due"] == []
        node("unpin", "--all")
        until(lambda: banned_cpus(path) == CpuSet(), lambda: banned_cpus(path))
