"""Events of the kernel's that are made by hand, of processes and threads that are real."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from need import lacking, need_root, need_tool

from vmpin import config
from vmpin.apply import Outcome
from vmpin.arrivals import Arrivals, Touched
from vmpin.birth import Account
from vmpin.cpuset import CpuSet
from vmpin.events import ContainerSeen, Held, SandboxSeen, Source
from vmpin.host.procfs import Procfs
from vmpin.model import Container, ContainerId, SandboxId, ThreadId, VcpuId
from vmpin.observe import Vm
from vmpin.placement import Placement
from vmpin.reconciler import Reconciler
from vmpin.state import DesiredState
from vmpin.wire.proc_events import KTHREADD, Comm, Event, Exec, Fork

PREFIX = f"u{secrets.token_hex(5)}-"
SHIM = "containerd-shim-kata-v2"


def sandbox(name: str) -> SandboxId:
    return SandboxId(PREFIX + name)


class Machine:
    """Processes of the test's own, and a reconciler that looks at nothing else. Two CPUs: the pool's and another."""

    def __init__(self, path: Path) -> None:
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            lacking("needs two CPUs")
        self.pool, self.other = CpuSet(usable[:1]), CpuSet(usable[1:2])
        self.both = self.pool | self.other
        self.path = path
        self.children: list[subprocess.Popen[bytes]] = []
        self.settings: dict[str, str] = {}
        self.reconciler = self.fresh()
        self.arrivals = Arrivals(self.reconciler)

    def fresh(self) -> Reconciler:
        (self.path / "run").mkdir(exist_ok=True)
        paths = {f"paths.{key}": str(self.path / key) for key in ("run", "kata_go", "kata_rs", "kubelet", "nri")}
        return Reconciler(config.load(None, {}, {**paths, "watch.only": f"{PREFIX}*",
                                                 "node.shared_pool": str(self.pool), **self.settings}))

    def configure(self, **policy: str) -> None:
        self.settings |= {f"policy.{key}": value for key, value in policy.items()}
        self.reconciler = self.fresh()
        self.arrivals = Arrivals(self.reconciler)

    def process(self, name: str, *args: str, script: str = "read line") -> subprocess.Popen[bytes]:
        """A shell under another program's name; ends with its standard input."""
        made = subprocess.Popen([name, "-c", script, *args], executable="/bin/sh", stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, preexec_fn=self._free)
        self.children.append(made)
        until(lambda: Procfs().cmdline(made.pid))  # exec(2) closes Popen's pipe first
        return made

    def vmm(self, name: str, **more: str) -> subprocess.Popen[bytes]:
        return self.process("qemu-system-x86_64", "-name", f"sandbox-{sandbox(name)},debug-threads=on", **more)

    def shim(self, name: str, **more: str) -> subprocess.Popen[bytes]:
        return self.process(SHIM, "-id", sandbox(name), **more)

    def crowd(self, binary: Path, name: str, *args: str) -> subprocess.Popen[bytes]:
        """Of many threads, under any name; all are there."""
        made = subprocess.Popen([name, *args], executable=binary, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                preexec_fn=self._free)
        self.children.append(made)
        assert made.stdout is not None
        assert made.stdout.read(1) == b"."
        return made

    def running(self, binary: Path, vcpus: int = 2) -> subprocess.Popen[bytes]:
        """A VM that was there before, in its place."""
        vmm = self.crowd(binary, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp",
                         str(vcpus))
        self.reconciler.resync(full=True)
        self.reconciler.resync()
        self.arrivals = Arrivals(self.reconciler)
        self.reconciler.tally.pins.clear()
        return vmm

    def child(self, parent: subprocess.Popen[bytes]) -> int:
        """What a shell starts that waits for a line, and says the number of."""
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(b"go\n")
        parent.stdin.flush()
        pid = int(parent.stdout.readline())
        until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"qemu"))
        return pid

    def _free(self) -> None:
        os.sched_setaffinity(0, self.both.frozen())

    def executed(self, *processes: subprocess.Popen[bytes] | int) -> Touched:
        return self.take(*(Exec(time.monotonic_ns(), each if isinstance(each, int) else each.pid)
                           for each in processes))

    def take(self, *events: Event) -> Touched:
        touched = self.arrivals.take(events)
        if settle := touched.settle | touched.done:
            self.arrivals.passed(self.reconciler.settle(settle, scan=False))
        return touched

    def resync(self) -> None:
        self.arrivals.passed(self.reconciler.resync(full=True), everything=True)

    def account(self, name: str) -> Account:
        return self.reconciler.births[sandbox(name)]

    def tell(self, name: str, cpus: CpuSet) -> None:
        """A hook's word on a container, before there is a VM."""
        container = Container(ContainerId(f"{name}-c"), cpuset=cpus)
        self.reconciler.reduce([SandboxSeen(sandbox(name), "oci"),
                                ContainerSeen(sandbox(name), container, Source.BUNDLE, time.time_ns(),
                                              bundle=str(self.path))])
        self.arrivals.passed(self.reconciler.settle([sandbox(name)]))


def mask(process: subprocess.Popen[bytes] | int) -> CpuSet:
    return CpuSet(os.sched_getaffinity(process if isinstance(process, int) else process.pid))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for child in made.children:
        child.kill()
        child.communicate()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of many threads: the benchmarks' stand-in for a QEMU."""
    made = tmp_path_factory.mktemp("crowd") / "crowd"
    source = Path(__file__).parents[1] / "bench" / "manythreads.c"
    subprocess.run([need_tool("gcc", "cc"), "-O1", "-pthread", "-o", made, source], check=True)
    return made


def start_time(pid: int) -> int:
    stat = Procfs().thread_stat(pid, pid)
    assert stat is not None
    return stat.starttime


def tids(process: subprocess.Popen[bytes]) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]


def by_name(process: subprocess.Popen[bytes], name: str) -> int:
    stats = {tid: Procfs().thread_stat(process.pid, tid) for tid in tids(process)}
    (found,) = [tid for tid, stat in stats.items() if stat is not None and stat.comm == name]
    return found


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Thread:
    """A thread of this process, which stays until told to end."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._there = threading.Event()
        self.tid = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.tid = threading.get_native_id()
        self._there.set()
        self._end.wait(60)

    def __enter__(self) -> Thread:
        self._thread.start()
        self._there.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


# Programs


def test_a_vmm_of_which_nobody_told_goes_to_the_shared_pool_at_its_exec(machine: Machine) -> None:
    vmm = machine.vmm("a")
    touched = machine.executed(vmm)
    assert mask(vmm) == machine.pool
    assert (touched.ours, touched.begun) == (True, {sandbox("a")})
    assert machine.reconciler.observer.vms[sandbox("a")].vmm.pid == vmm.pid
    account = machine.account("a")
    assert (account.told, account.inside, account.outside, account.placed) == (1, 0, 1, 1)
    assert 0 < account.outside_max == account.placed_max < 10


def test_a_vmm_whose_containers_are_known_goes_to_their_cpus(machine: Machine) -> None:
    machine.tell("a", machine.other)
    vmm = machine.vmm("a")
    machine.executed(vmm)
    assert mask(vmm) == machine.other


@pytest.mark.parametrize("name", ["qemu", "shim"])
def test_it_is_placed_before_any_pass(machine: Machine, name: str) -> None:
    made = machine.vmm("a") if name == "qemu" else machine.shim("a")
    machine.arrivals.take([Exec(time.monotonic_ns(), made.pid)])
    assert mask(made) == machine.pool


def test_other_programs_are_left_alone(machine: Machine) -> None:
    others = [machine.process("sleep"), machine.process("qemu-system-x86_64", "-name", "somebody-elses"),
              machine.process("qemu-system-x86_64", "-name", "sandbox-x" + PREFIX), machine.process(SHIM, "-id", "x")]
    touched = machine.executed(*others, os.getpid(), 2, 1 << 22)
    assert {mask(each) for each in others} == {machine.both}
    assert (touched.ours, touched.settle, machine.reconciler.births) == (False, set(), {})


def test_a_sandbox_out_of_our_hands_is_left_alone_at_its_vmms_exec(machine: Machine) -> None:
    machine.tell("a", machine.other)
    machine.reconciler.reduce([Held(sandbox("a"), True)])
    machine.reconciler.settle([sandbox("a")])
    vmm = machine.vmm("a")
    machine.executed(vmm)
    assert mask(vmm) == machine.both


def test_a_second_vmm_of_a_sandbox_is_left_alone_from_its_exec_on(machine: Machine) -> None:
    """Anybody can write such a command line."""
    vmm = machine.vmm("a")
    machine.executed(vmm)
    second = machine.vmm("a")
    machine.executed(second)
    machine.resync()
    assert (mask(vmm), mask(second)) == (machine.pool, machine.both)
    vmm.kill()
    vmm.wait()
    third = machine.vmm("a")
    machine.executed(third)  # when the first has ended it may be
    assert mask(third) == machine.pool


@pytest.mark.parametrize("argv", [("qemu-system-x86_64", "-name", "sandbox-{}"), (SHIM, "-id", "{}"),
                                  ("virtiofsd", "--shared-dir=/run/kata-containers/shared/sandboxes/{}/")])
def test_a_container_that_executes_such_a_program_is_left_alone(machine: Machine, argv: tuple[str, ...]) -> None:
    """Its processes are in a pid namespace of their own, and where the kubelet put them."""
    need_root()
    program = machine.path / argv[0]
    program.symlink_to("/bin/sh")
    outside = subprocess.Popen(
        [need_tool("unshare"), "--pid", "--fork", "--kill-child", program, "-c", "read line",
         *(word.format(sandbox("a")) for word in argv[1:])], stdin=subprocess.PIPE, preexec_fn=machine._free)
    machine.children.append(outside)
    until(lambda: (found := Procfs().children(outside.pid)) and Procfs().cmdline(found[0])[:1] == [str(program)])
    (inside,) = map(int, Procfs().children(outside.pid))
    touched = machine.executed(inside)
    machine.resync()
    assert mask(inside) == machine.both
    assert (touched.ours, machine.reconciler.observer.vms, machine.reconciler.births) == (False, {}, {})
    assert machine.reconciler.touched() == []


def test_threads_of_a_shim_that_was_given_back_are_left_alone(machine: Machine, crowd: Path) -> None:
    machine.reconciler.reduce([SandboxSeen(sandbox("a"), "oci")])
    shim = machine.crowd(crowd, SHIM, "-id", sandbox("a"))
    machine.executed(shim)
    machine.reconciler.unpin([sandbox("a")])
    tid = next(tid for tid in tids(shim) if tid != shim.pid)
    assert mask(tid) == machine.both
    machine.take(Fork(time.monotonic_ns(), shim.pid, shim.pid, tid, shim.pid))
    assert mask(tid) == machine.both
    machine.reconciler.take_back([sandbox("a")])
    machine.take(Fork(time.monotonic_ns(), shim.pid, shim.pid, tid, shim.pid))
    assert mask(tid) == machine.pool


@pytest.mark.parametrize(("rule", "expected"), [("off", "both"), ("sandbox", "pool"), ("other", "other")])
def test_a_shim_goes_by_its_policy(machine: Machine, rule: str, expected: str) -> None:
    machine.configure(shim=str(machine.other) if rule == "other" else rule)
    shim = machine.shim("a")
    machine.executed(shim)
    assert mask(shim) == getattr(machine, expected)


def test_threads_that_were_made_before_it_was_looked_at_are_placed_with_it(machine: Machine, crowd: Path) -> None:
    shim = machine.crowd(crowd, SHIM, "-id", sandbox("a"))
    machine.arrivals.take([Exec(time.monotonic_ns(), shim.pid)])
    assert {mask(tid) for tid in tids(shim)} == {machine.pool}
    account = machine.account("a")
    assert (account.told, account.outside) == (len(tids(shim)), len(tids(shim)))


def test_of_processes_that_were_forked_before_it_was_looked_at_a_few_are_placed_with_it(machine: Machine) -> None:
    """QEMU's -daemonize forks twice; whoever forks on and on does not keep the watcher from the others."""
    vmm = machine.vmm("a", script="exec 3<&0; fork() { if [ $1 = 30 ]; then echo .; read line <&3; else"
                                  " fork $(($1 + 1)) & wait; fi; }; fork 0")
    assert vmm.stdout is not None
    assert vmm.stdout.read(1) == b"."
    chain = [vmm.pid]
    while children := Procfs().children(chain[-1]):
        chain.append(int(children[0]))
    assert len(chain) == 31
    machine.arrivals.take([Exec(time.monotonic_ns(), vmm.pid)])
    masks = [mask(pid) for pid in chain]
    assert masks[:3] == [machine.pool] * 3
    assert masks.count(machine.pool) < 10
    assert masks[-1] == machine.both


def test_a_process_that_executes_something_else_is_followed_no_more(machine: Machine) -> None:
    vmm = machine.process("qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')}", script="read line; exec sleep 60")
    machine.executed(vmm)
    assert sandbox("a") in machine.reconciler.observer.vms
    assert vmm.stdin is not None
    vmm.stdin.write(b"go\n")
    vmm.stdin.flush()
    until(lambda: Procfs().cmdline(vmm.pid) == ["sleep", "60"])
    machine.executed(vmm)
    assert sandbox("a") not in machine.reconciler.observer.vms
    with Thread() as thread:
        machine.take(Fork(time.monotonic_ns(), 1, 1, thread.tid, vmm.pid))
        assert mask(thread.tid) == CpuSet(os.sched_getaffinity(0))


def test_a_vmm_that_executes_itself_with_other_arguments_is_another(machine: Machine) -> None:
    (machine.path / "qemu-system-x86_64").symlink_to("/bin/sh")
    name = f"-name sandbox-{sandbox('a')}"
    vmm = machine.vmm("a", script=f"read line; PATH={machine.path} exec qemu-system-x86_64 -c 'read x' {name} -smp 7")
    machine.executed(vmm)
    assert vmm.stdin is not None
    vmm.stdin.write(b"go\n")
    vmm.stdin.flush()
    until(lambda: Procfs().cmdline(vmm.pid)[-1] == "7")
    machine.executed(vmm)
    assert machine.reconciler.observer.vms[sandbox("a")].vmm.argv[-2:] == ["-smp", "7"]


def test_a_helper_belongs_to_the_vm_that_comes_later(machine: Machine) -> None:
    shim = machine.shim("a")
    machine.executed(shim)
    assert machine.reconciler.observer.vms == {}
    vmm = machine.vmm("a")
    machine.executed(vmm)
    machine.tell("a", machine.other)
    vm = machine.reconciler.observer.vms[sandbox("a")]
    assert [process.pid for process in vm.helpers] == [shim.pid]
    assert (mask(shim), mask(vmm)) == (machine.other, machine.other)


# Threads


def test_a_thread_that_was_born_outside_is_put_with_the_others(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    tid = by_name(vmm, "call_rcu")
    os.sched_setaffinity(tid, machine.both.frozen())
    born = time.monotonic_ns() - 3_000_000
    touched = machine.arrivals.take([Fork(born, vmm.pid, vmm.pid, tid, vmm.pid)])
    assert mask(tid) == machine.pool
    assert (touched.ours, touched.settle) == (True, set())
    account = machine.account("a")
    assert account.outside == 1
    assert 0.003 <= account.outside_max < 10


def test_a_thread_that_was_born_in_its_place_costs_nothing(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    tid = by_name(vmm, "call_rcu")
    machine.arrivals.take([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid)])
    account = machine.account("a")
    assert (account.told, account.inside, account.outside, account.outside_sum) == (1, 1, 0, 0.0)
    assert machine.reconciler.tally.pins.total() == 0


def test_a_vcpus_name_puts_it_where_vcpus_go(machine: Machine, crowd: Path) -> None:
    machine.configure(emulator=str(machine.other))
    vmm = machine.running(crowd)
    tid = by_name(vmm, "CPU 1/KVM")
    assert (mask(vmm), mask(tid)) == (machine.other, machine.pool)
    os.sched_setaffinity(tid, machine.other.frozen())  # as it would have been born
    born = time.monotonic_ns()
    touched = machine.arrivals.take([Fork(born, vmm.pid, vmm.pid, tid, vmm.pid),
                                     Comm(born + 1, tid, vmm.pid, "CPU 1/KVM")])
    assert mask(tid) == machine.pool
    assert (touched.settle, touched.done) == (set(), {sandbox("a")})  # the pass can wait
    assert machine.account("a").placed == 0  # not before it bears that out
    until_then = (time.monotonic_ns() - born) / 1e9
    time.sleep(0.02)
    machine.arrivals.passed(machine.reconciler.settle(touched.done, scan=False))
    assert machine.account("a").placed == 1
    assert machine.account("a").placed_max <= until_then
    assert machine.reconciler.tally.births.total == 1


def test_a_new_vcpu_is_placed_by_its_name_before_the_pass(machine: Machine, crowd: Path) -> None:
    """Beside one that has the exclusive CPU: where the others float."""
    machine.tell("a", machine.other)
    vmm = machine.running(crowd, vcpus=1)
    assert mask(by_name(vmm, "CPU 0/KVM")) == machine.other
    machine.reconciler.reduce([ContainerSeen(sandbox("a"), Container(ContainerId("more"), cpuset=machine.pool),
                                             Source.BUNDLE, time.time_ns(), bundle=str(machine.path))])
    machine.reconciler.settle([sandbox("a")])
    assert mask(vmm) == machine.both
    tid = by_name(vmm, "call_rcu")
    machine.arrivals.take([Comm(time.monotonic_ns(), tid, vmm.pid, "CPU 5/KVM")])
    assert mask(tid) == machine.pool
    machine.reconciler.settle([sandbox("a")])  # the thread's real name is another
    assert mask(tid) == machine.both


def named(vmm: subprocess.Popen[bytes], thread: str, name: str) -> Comm:
    return Comm(time.monotonic_ns(), by_name(vmm, thread), vmm.pid, name)


def test_of_two_vcpus_that_come_before_the_pass_the_second_does_not_wait(machine: Machine, crowd: Path) -> None:
    """Neither's place takes the other into account."""
    vmm = machine.running(crowd, vcpus=1)
    first = machine.arrivals.take([named(vmm, "call_rcu", "CPU 5/KVM")])
    second = machine.arrivals.take([named(vmm, "IO mon_iothread", "CPU 6/KVM")])
    assert (first.settle, first.done, second.settle) == (set(), {sandbox("a")}, {sandbox("a")})


def test_while_not_all_vcpus_are_known_none_of_them_waits_for_the_pass(machine: Machine, crowd: Path) -> None:
    """The last one's name is what the whole VM is placed by."""
    vmm = machine.running(crowd)
    machine.reconciler.observer.vms[sandbox("a")].known = False
    touched = machine.arrivals.take([named(vmm, "call_rcu", "CPU 2/KVM")])
    assert (touched.settle, touched.done) == ({sandbox("a")}, set())


def test_a_vcpu_for_which_another_has_to_move_does_not_wait_for_the_pass(machine: Machine, crowd: Path) -> None:
    """One vCPU for two exclusive CPUs may use both; of two each has its own."""
    machine.tell("a", machine.both)
    vmm = machine.running(crowd, vcpus=1)
    machine.reconciler.reduce([ContainerSeen(sandbox("a"), Container(ContainerId("a-c"), cpuset=machine.both,
                                                                     exclusive=True),
                                             Source.BUNDLE, time.time_ns(), bundle=str(machine.path))])
    machine.reconciler.settle([sandbox("a")])
    placement = machine.reconciler.placements[sandbox("a")]
    assert placement.by_vcpu == {0: machine.both}
    touched = machine.arrivals.take([named(vmm, "call_rcu", "CPU 1/KVM")])
    assert (touched.settle, touched.done) == ({sandbox("a")}, set())


def test_whom_vmpin_itself_has_moved_did_not_drift(machine: Machine, crowd: Path) -> None:
    vmm = pinned(machine, crowd)
    tid = by_name(vmm, "call_rcu")
    for _ in range(5):
        machine.arrivals.take([Comm(time.monotonic_ns(), tid, vmm.pid, "CPU 5/KVM")])
        assert mask(tid) == machine.pool
        for _ in range(2):  # by then it bears its old name
            machine.reconciler.settle([sandbox("a")])
        assert mask(tid) == machine.both
    assert machine.reconciler.tally.drift == {}
    assert machine.reconciler.tally.fights == 0
    os.sched_setaffinity(tid, machine.other.frozen())  # as another hand does
    machine.reconciler.settle([sandbox("a")])
    assert machine.reconciler.tally.drift == {"other": 1}


def test_a_thread_that_renames_itself_all_the_time_is_placed_once_before_the_pass(
        machine: Machine, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs in a VMM may be anything: it is not to keep the watcher from the others."""
    vmm = machine.running(crowd)
    tid = by_name(vmm, "call_rcu")
    asked: list[int] = []
    places = machine.reconciler.places
    with_vcpu = places.with_vcpu

    def counted(vm: Vm, vcpu: VcpuId, state: DesiredState) -> Placement | None:
        asked.append(vcpu)
        return with_vcpu(vm, vcpu, state)

    monkeypatch.setattr(places, "with_vcpu", counted)
    names = [Comm(time.monotonic_ns(), tid, vmm.pid, f"CPU {number}/KVM") for number in range(2, 500)]
    touched = machine.arrivals.take(names)
    assert asked == [2]
    machine.reconciler.settle(touched.settle, scan=False)  # reads the name as it is, and nobody is a newcomer then
    machine.reconciler.settle(touched.settle, scan=False)
    machine.arrivals.take(names)
    assert asked == [2, 2]


def pinned(machine: Machine, crowd: Path) -> subprocess.Popen[bytes]:
    """The pool is vCPU 0's, vCPU 1 has the exclusive CPU, and all other threads may be on both."""
    machine.tell("a", machine.other)
    vmm = machine.running(crowd)
    machine.reconciler.reduce([ContainerSeen(sandbox("a"), Container(ContainerId("more"), cpuset=machine.pool),
                                             Source.BUNDLE, time.time_ns(), bundle=str(machine.path))])
    machine.reconciler.settle([sandbox("a")])
    assert [mask(by_name(vmm, f"CPU {vcpu}/KVM")) for vcpu in (0, 1)] == [machine.pool, machine.other]
    assert mask(by_name(vmm, "call_rcu")) == machine.both
    return vmm


@pytest.mark.parametrize(("thread", "name"), [
    ("call_rcu", "CPU 0/KVM"), ("call_rcu", "CPU 1/KVM"), ("CPU 1/KVM", "CPU 0/KVM"), ("CPU 1/KVM", "CPU 5/KVM")])
def test_a_name_that_no_pass_would_believe_moves_nothing(machine: Machine, crowd: Path, thread: str,
                                                         name: str) -> None:
    """Of another vCPU that is there, or by one: what one hand does the other would undo, and call a fight."""
    vmm = pinned(machine, crowd)
    tid = by_name(vmm, thread)
    before = mask(tid)
    machine.arrivals.take([Comm(time.monotonic_ns(), tid, vmm.pid, name)])
    assert mask(tid) == before


def test_a_vcpu_that_was_unplugged_does_not_keep_its_number(machine: Machine, crowd: Path) -> None:
    vmm = pinned(machine, crowd)
    learned = machine.reconciler.observer.vms[sandbox("a")].learned
    (old,) = (thread for thread, vcpu in learned.items() if vcpu == 1)
    learned[ThreadId(old.tid, old.starttime - 1)] = learned.pop(old)  # so that one has ended
    tid = by_name(vmm, "call_rcu")
    machine.arrivals.take([Comm(time.monotonic_ns(), tid, vmm.pid, "CPU 1/KVM")])
    assert mask(tid) == machine.other


def test_a_name_that_says_nothing_makes_no_pass(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    tid = by_name(vmm, "call_rcu")
    touched = machine.arrivals.take([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid),
                                     Comm(time.monotonic_ns(), tid, vmm.pid, "worker")])
    assert (touched.settle, touched.unnamed) == (set(), set())
    assert machine.account("a").placed == 1


def test_a_thread_without_a_name_is_looked_for_again(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    machine.reconciler.observer.vms[sandbox("a")].found_by = "kvm_run"
    touched = machine.arrivals.take([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, by_name(vmm, "call_rcu"), vmm.pid)])
    assert touched.unnamed == {sandbox("a")}
    assert machine.account("a").placed == 0


def test_a_thread_that_has_ended_is_counted_and_no_more(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    with Thread() as thread:
        gone = thread.tid
    until(lambda: not Path(f"/proc/self/task/{gone}").exists())
    machine.take(Fork(time.monotonic_ns(), vmm.pid, vmm.pid, gone, vmm.pid))
    account = machine.account("a")
    assert (account.told, account.ended, account.placed) == (1, 1, 0)


def test_a_thread_of_whoever_has_a_dead_vmms_number_is_left_alone(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    process = machine.reconciler.observer.vms[sandbox("a")].vmm
    process.id = ThreadId(vmm.pid, process.id.starttime - 1)  # so this one has its number
    tids_ = [by_name(vmm, "call_rcu"), by_name(vmm, "CPU 1/KVM")]
    for tid in tids_:
        os.sched_setaffinity(tid, machine.both.frozen())
    machine.arrivals.take([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tids_[0], vmm.pid),
                           Comm(time.monotonic_ns(), tids_[1], vmm.pid, "CPU 1/KVM")])
    assert [mask(tid) for tid in tids_] == [machine.both, machine.both]


def test_a_number_that_is_no_thread_of_the_process_is_left_alone(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    with Thread() as thread:
        free = mask(thread.tid)
        machine.arrivals.take([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, thread.tid, vmm.pid),
                               Comm(time.monotonic_ns(), thread.tid, vmm.pid, "CPU 1/KVM")])
        assert mask(thread.tid) == free


def test_threads_of_processes_that_are_nothing_to_us_are_left_alone(machine: Machine) -> None:
    with Thread() as thread:
        free = mask(thread.tid)
        touched = machine.take(Fork(time.monotonic_ns(), 1, 1, thread.tid, os.getpid()),
                               Comm(time.monotonic_ns(), thread.tid, os.getpid(), "CPU 0/KVM"),
                               Fork(time.monotonic_ns(), 1, 1, 77, 77))
        assert mask(thread.tid) == free
    assert touched == Touched()


def test_new_kernel_threads_are_looked_at_when_they_have_names(machine: Machine) -> None:
    touched = machine.take(Fork(time.monotonic_ns(), KTHREADD, KTHREADD, 77, 77))
    assert (touched.kernel, touched.ours) == ({77}, False)
    assert machine.arrivals.name([77, 2, os.getpid(), 1 << 22]) == set()


# What was there before


def test_what_it_had_before_outlives_a_kill_right_after_its_mask_was_set(machine: Machine) -> None:
    vmm = machine.vmm("a")
    machine.arrivals.take([Exec(time.monotonic_ns(), vmm.pid)])
    assert mask(vmm) == machine.pool
    assert not machine.reconciler.config.state_file.exists()
    second = machine.fresh()
    second.resync(full=True)
    assert mask(vmm) == machine.pool
    results = second.unpin([sandbox("a")])
    assert [result.outcome for result in results] == [Outcome.DONE]
    assert machine.both <= mask(vmm)


def test_the_notes_are_gone_when_the_state_file_has_them(machine: Machine) -> None:
    vmm = machine.vmm("a")
    machine.arrivals.take([Exec(time.monotonic_ns(), vmm.pid)])
    assert machine.reconciler.config.notes_file.exists()
    assert machine.reconciler.unsaved
    assert machine.reconciler.save()
    assert not machine.reconciler.config.notes_file.exists()
    assert machine.fresh().pinner.before[sandbox("a")].processes.keys() == {ThreadId(vmm.pid, start_time(vmm.pid))}


@pytest.mark.parametrize("apart", [False, True])
def test_a_vmm_that_was_born_of_a_placed_shim_had_what_that_had(machine: Machine, apart: bool) -> None:
    where = machine.other if apart else machine.pool
    if apart:
        machine.configure(shim=str(machine.other))
    (machine.path / "qemu-system-x86_64").symlink_to("/bin/sh")
    shim = machine.shim("a", script=f"read line; PATH={machine.path} qemu-system-x86_64 -c 'kill -STOP $$; :' "
                                    f"-name sandbox-{sandbox('a')} >/dev/null & echo $!; wait")
    machine.executed(shim)
    assert mask(shim) == where
    vmm = machine.child(shim)
    try:
        assert mask(vmm) == where  # inherited
        machine.executed(vmm)
        assert (mask(vmm), mask(shim)) == (machine.pool, where)
        account = machine.account("a")
        assert (account.told, account.inside) == (2, 1)
        machine.resync()
        machine.reconciler.unpin([sandbox("a")])
        assert (mask(vmm), mask(shim)) == (machine.both, machine.both)
    finally:
        os.kill(vmm, signal.SIGKILL)


def test_a_shim_without_a_vm_gets_back_what_it_had(machine: Machine) -> None:
    shim = machine.shim("a")
    machine.executed(shim)
    machine.resync()
    assert mask(shim) == machine.pool
    assert machine.reconciler.touched() == [sandbox("a")]
    machine.reconciler.unpin(machine.reconciler.touched())
    assert mask(shim) == machine.both
    assert machine.reconciler.touched() == []


def test_a_shim_that_has_ended_is_forgotten(machine: Machine) -> None:
    shim = machine.shim("a")
    machine.executed(shim)
    shim.kill()
    shim.wait()
    machine.resync()
    assert (machine.reconciler.births, machine.reconciler.touched()) == ({}, [])


# Without events


def test_a_vm_that_was_found_late_could_run_outside_until_then(machine: Machine, crowd: Path) -> None:
    machine.resync()
    time.sleep(0.03)
    began = time.monotonic_ns()
    vmm = machine.crowd(crowd, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp", "2")
    time.sleep(0.1)
    machine.resync()
    assert {mask(tid) for tid in tids(vmm)} == {machine.pool}
    account = machine.account("a")
    assert (account.told, account.outside) == (0, len(tids(vmm)))
    assert 0.09 < account.outside_max < 10
    # The word of their births comes after that pass, as they lay in the buffer.
    workers = [tid for tid in tids(vmm) if tid != vmm.pid]
    machine.arrivals.take([Fork(began, vmm.pid, vmm.pid, tid, vmm.pid) for tid in workers])
    assert (account.told, account.inside, account.outside) == (len(workers), 0, len(tids(vmm)))
    machine.arrivals.take([Exec(began, vmm.pid)])
    assert (account.told, account.inside, account.outside) == (len(tids(vmm)), 0, len(tids(vmm)))
    assert machine.reconciler.tally.births.total == account.placed == len(tids(vmm))
    machine.tell("a", machine.other)  # its masks change, and nothing is outside
    machine.resync()
    assert machine.account("a").outside == len(tids(vmm))


def test_who_is_found_late_within_its_cpus_was_never_outside(machine: Machine, crowd: Path) -> None:
    machine.configure(emulator=str(machine.other))
    machine.resync()
    time.sleep(0.03)
    vmm = machine.crowd(crowd, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp", "2")
    for tid in tids(vmm):
        os.sched_setaffinity(tid, machine.pool.frozen())
    machine.arrivals.passed(machine.reconciler.resync(full=True))  # the emulator threads are put elsewhere
    assert mask(vmm) == machine.other
    assert mask(by_name(vmm, "CPU 1/KVM")) == machine.pool
    machine.tell("a", machine.other)  # and now the others, too
    assert {mask(tid) for tid in tids(vmm)} == {machine.other}
    assert machine.reconciler.births == {}


def test_who_was_told_of_and_is_moved_by_another_hand_is_not_called_newborn(machine: Machine, crowd: Path) -> None:
    machine.resync()
    time.sleep(0.03)
    vmm = machine.crowd(crowd, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp", "2")
    machine.executed(vmm)
    before = machine.account("a").outside
    tid = by_name(vmm, "call_rcu")
    os.sched_setaffinity(tid, machine.both.frozen())
    machine.resync()
    assert mask(tid) == machine.pool
    assert machine.account("a").outside == before


def test_who_was_there_before_is_not_called_newborn(machine: Machine, crowd: Path) -> None:
    machine.crowd(crowd, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp", "2")
    time.sleep(0.03)
    arrivals = Arrivals(machine.reconciler)
    arrivals.passed(machine.reconciler.resync(full=True), everything=True)
    assert machine.reconciler.births == {}


# Any order


def test_events_may_come_doubled_late_or_for_nothing(machine: Machine, crowd: Path) -> None:
    vmm, now = machine.running(crowd), time.monotonic_ns()
    tid = by_name(vmm, "CPU 1/KVM")
    events: list[Event] = [
        Comm(now, tid, vmm.pid, "CPU 1/KVM"), Fork(now, 1, 1, tid, vmm.pid), Exec(now, vmm.pid),
        Fork(now, 1, 1, tid, vmm.pid), Comm(now, tid, vmm.pid, "\ufffd"), Exec(now, tid), Exec(now, 0),
        Fork(now, 0, 0, 0, vmm.pid), Comm(now, 0, vmm.pid, "CPU 99999/KVM"), Exec(now, vmm.pid)]
    for _ in range(2):
        for event in events:
            machine.take(event)
    assert {mask(each) for each in tids(vmm)} == {machine.pool}
    vmm.kill()
    vmm.wait()
    for event in events:
        machine.take(event)
    assert machine.reconciler.observer.vms == {}
