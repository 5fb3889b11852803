"""Long command lines and frequent execs cost other sandboxes nothing: counted, not timed."""

from __future__ import annotations

import subprocess
import time
from collections import Counter

import pytest
from need import need_root, need_tool
from newcomers import SHIM, Machine, mask, sandbox, until

from vmpin.host import procfs
from vmpin.host.procfs import BEGINNING, Procfs
from vmpin.wire.proc_events import Exec

pytest_plugins = ["given_unit"]

#: Some 2 MB, the most that the kernel takes; the part that is read first is of as many words as possible.
LONG = [*["-name", "a"] * 8192, *["x" * 100_000] * 18]


class Reads:
    """Counts reads of files while it is installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[str] = Counter()
        self.times: Counter[str] = Counter()
        read = procfs.read_file

        def counted(path: str, limit: int = 65536) -> bytes | None:
            found = read(path, limit)
            self.bytes[path] += len(found or b"")
            self.times[path] += 1
            return found

        monkeypatch.setattr(procfs, "read_file", counted)

    def of(self, pid: int) -> int:
        """Bytes of a process's command line."""
        return self.bytes[f"/proc/{pid}/cmdline"]


def contained(machine: Machine, name: str, *words: str) -> int:
    """A container's process: in a pid namespace of its own, named as it likes. Its pid."""
    need_root()
    program = machine.path / name
    program.symlink_to("/bin/sh")
    outside = subprocess.Popen([need_tool("unshare"), "--pid", "--fork", "--kill-child", program, "-c", "read line",
                                *words], stdin=subprocess.PIPE, preexec_fn=machine.free)
    machine.children.append(outside)
    until(lambda: (found := Procfs().children(outside.pid)) and Procfs().cmdline(found[0])[:1] == [str(program)])
    return int(Procfs().children(outside.pid)[0])


@pytest.mark.parametrize("name", ["qemu-system-x86_64", "virtiofsd", SHIM])
def test_a_containers_command_line_is_read_neither_at_its_exec_nor_in_a_pass(
        machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    inside = contained(machine, name, *LONG)
    reads = Reads(monkeypatch)
    machine.executed(inside)
    machine.reconciler.resync(full=True)
    assert reads.of(inside) == 0
    assert mask(inside) == machine.both


def test_a_long_command_line_is_read_as_rarely_as_a_short_one_unless_it_is_a_vmms(
        machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = machine.process("sleep", "600"), machine.process("sleep", *LONG)
    vmm = machine.vmm("a")
    reads = Reads(monkeypatch)
    machine.executed(short, long, vmm)
    for process in (short, long):
        assert reads.times[f"/proc/{process.pid}/cmdline"] == 1
    assert reads.of(long.pid) == BEGINNING
    assert mask(vmm) == machine.pool


def test_a_bounded_part_is_read_of_a_host_process_that_names_itself_a_vmm(machine: Machine,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    vmm = machine.process("qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')}", *(["x" * 100_000] * 18))
    reads = Reads(monkeypatch)
    machine.placer.handle([Exec(time.monotonic_ns(), vmm.pid)])
    assert mask(vmm) == machine.pool
    # Once to see what it is, and once for its children, which are compared with it.
    assert reads.of(vmm.pid) <= 2 * (BEGINNING + 131072)


def test_one_inspection_covers_all_earlier_execs_of_a_process(
        machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    other, vmm = machine.process("sleep"), machine.vmm("a")
    reads = Reads(monkeypatch)
    machine.placer.handle([Exec(time.monotonic_ns(), pid) for _ in range(100) for pid in (other.pid, vmm.pid)])
    assert reads.times[f"/proc/{other.pid}/cmdline"] == 1
    assert mask(vmm) == machine.pool
    machine.placer.handle([Exec(time.monotonic_ns(), other.pid)])
    assert reads.times[f"/proc/{other.pid}/cmdline"] == 2  # that one came after


def test_nothing_is_read_of_a_process_that_has_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = machine.process("sleep")
    machine.executed(ended)
    ended.kill()
    ended.wait()
    reads = Reads(monkeypatch)
    machine.placer.handle([Exec(time.monotonic_ns(), ended.pid)])
    assert not reads.times
