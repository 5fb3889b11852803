"""Where threads ran, as sampled: of processes that never sleep, moved by another hand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sampled_node import account_of, ledger_of
from strayed import Spinners, booked, run_for, spinners
from system_calls import system_calls
from waiting import wait

from vmpin.domain.model import ThreadRole
from vmpin.features.common.cpu_times import Ran, Schedstat, process_ran
from vmpin.features.proof.residency_ledger import RunAccount
from vmpin.features.proof.run_time_books import RunTimeBooks
from vmpin.features.proof.sampler import BREATH, SHARE, Sampler
from vmpin.host.procfs import Procfs

SECOND = 10**9


def started(node: Spinners, books: RunTimeBooks | None = None) -> Sampler:
    ledger = ledger_of(node)
    ledger.begin(None if books is None else books.read().result(), time.time())
    return Sampler(node.reconciler.view, ledger, books)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    if not Schedstat().precise:
        pytest.skip("this kernel has no schedstat")
    with spinners(tmp_path) as made:
        yield made


class Counting(Schedstat):
    """How often a thread's files were read."""

    reads = 0

    def ran(self, pid: int | str, tid: int | str) -> Ran | None:
        self.reads += 1
        return super().ran(pid, tid)


def test_a_thread_that_ran_costs_three_small_files_and_a_process_of_which_none_ran_costs_one_clock(
        node: Spinners) -> None:
    vm = node.vm()
    sampler = started(node)
    sampler.round()
    node.children[vm.sandbox].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, vm.vmm.pid, os.WSTOPPED | os.WNOWAIT)
    # It is reported before it leaves its CPU, which on a busy machine may be a while later.
    wait(lambda: system_calls(sampler.round).total() == 0, "a process that is stopped costs more than a clock")
    node.children[vm.sandbox].send_signal(signal.SIGCONT)
    run_for(0.05, vm.vmm.pid)
    files = 4 if sampler.host.counts_migrations else 3  # its stat, and the three of its thread
    calls = system_calls(sampler.round)
    # One more is the directory of threads.
    assert calls == {"open": files + 1, "read": files, "close": files + 1}


def test_what_runs_in_its_place_is_booked_as_certain(node: Spinners) -> None:
    vm = node.vm()
    sampler = started(node)
    before = booked(vm.vmm.pid)
    sampler.round()
    assert account_of(node, vm) == RunAccount()  # what it ran before cannot be read
    run_for(0.3, vm.vmm.pid)
    sampler.round()
    after, found = booked(vm.vmm.pid), account_of(node, vm)
    assert 0.3 * SECOND <= found.placed <= after - before
    assert (found.elsewhere, found.free) == (0, 0)
    if sampler.host.counts_migrations:
        assert (found.certain, found.migrations) == (found.placed, 0)
    assert list(ledger_of(node).of(vm.sandbox).roles) == [ThreadRole.EMULATOR]
    run_for(0.1, vm.vmm.pid)
    sampler.round()
    assert account_of(node, vm).placed >= found.placed + 0.1 * SECOND


def test_what_another_hand_moved_away_is_booked_as_elsewhere(node: Spinners) -> None:
    vm = node.vm()
    sampler = started(node)
    sampler.round()
    node.move(vm, node.there)
    run_for(0.2, vm.vmm.pid)
    sampler.round()
    found = account_of(node, vm)
    assert found.placed == 0
    assert found.elsewhere >= 0.2 * SECOND
    assert found.certain == 0
    run_for(0.1, vm.vmm.pid)
    sampler.round()
    (finding,) = sampler.ledger.findings.values()
    assert (finding.sandbox, finding.tid, finding.cpu, finding.place) == (
        vm.sandbox, vm.vmm.pid, node.there.first, node.here)
    assert finding.spent == account_of(node, vm).elsewhere


def test_what_was_moved_away_and_put_back_between_two_samples_is_booked_as_elsewhere(node: Spinners) -> None:
    vm = node.vm()
    sampler = started(node)
    node.node_state.report_strays(sampler.strayed)
    assert node.repair(vm) == 0
    sampler.round()
    node.move(vm, node.there)
    run_for(0.2, vm.vmm.pid)
    assert node.repair(vm) == 1
    run_for(0.2, vm.vmm.pid)
    sampler.round()
    found = account_of(node, vm)
    assert found.elsewhere >= 0.2 * SECOND
    assert found.placed >= 0.2 * SECOND
    assert found.certain == 0
    if sampler.host.counts_migrations:
        assert found.migrations >= 2
    assert [finding.cpu for finding in sampler.ledger.findings.values()] == [node.there.first]
    assert ledger_of(node).drift.total() == 1  # whatever the cause: a numad of another test may run just then


def test_a_repair_goes_on_where_the_thread_cannot_be_sampled_before(node: Spinners,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_descriptors(pid: int, tid: int) -> None:
        raise OSError(24, "Too many open files")

    vm = node.vm()
    sampler = started(node)
    assert node.repair(vm) == 0
    sampler.round()
    node.move(vm, node.there)
    run_for(0.05, vm.vmm.pid)
    monkeypatch.setattr(sampler.host, "ran", out_of_descriptors)
    assert node.repair(vm) == 1
    assert ledger_of(node).drift.total() == 1


def test_a_thread_that_is_free_to_run_anywhere_is_booked_as_free(node: Spinners) -> None:
    vm = node.vm()
    sampler = started(node)
    sampler.round()
    node.place(vm.sandbox, None)
    run_for(0.1, vm.vmm.pid)
    sampler.round()
    found = account_of(node, vm)
    assert found.free >= 0.1 * SECOND
    assert (found.placed, found.elsewhere) == (0, 0)
    del node.node_state.placement_cache.placements[vm.sandbox]  # unpinned by hand
    run_for(0.1, vm.vmm.pid)
    sampler.round()
    assert account_of(node, vm).free >= found.free + 0.1 * SECOND


def test_where_the_place_changed_in_between_both_count_once(node: Spinners) -> None:
    vm = node.vm()
    sampler = started(node)
    sampler.round()
    run_for(0.1, vm.vmm.pid)
    node.place(vm.sandbox, node.there)  # decided, and not set yet
    sampler.round()
    found = account_of(node, vm)
    assert found.placed >= 0.1 * SECOND
    assert (found.certain == found.placed) is False
    run_for(0.1, vm.vmm.pid)
    sampler.round()
    assert account_of(node, vm).elsewhere >= 0.1 * SECOND


def test_a_process_that_sleeps_costs_one_system_call(node: Spinners) -> None:
    vm = node.vm(code="exec sleep 600")
    looks = ["", ""]
    while looks != ["S", "S"]:  # it has begun to: what runs before that is counted
        time.sleep(0.05)
        stat = Procfs().stat(vm.vmm.pid)
        looks = [looks[1], stat.state if stat is not None and stat.comm == "sleep" else ""]
    sampler = started(node)
    sampler.host = counting = Counting()
    sampler.round()
    assert counting.reads == 1
    for _ in range(5):
        sampler.round()
    assert counting.reads == 1
    node.place(vm.sandbox, node.there)  # its place is another: that is to be known before it runs again
    sampler.round()
    assert counting.reads == 2


def test_what_is_born_while_it_is_looked_at_counts_from_its_birth(node: Spinners) -> None:
    sampler = started(node)
    sampler.round()
    time.sleep(0.02)  # start times are in steps of a hundredth of a second
    vm = node.vm()
    run_for(0.2, vm.vmm.pid)
    sampler.round()
    found = account_of(node, vm)
    assert found.placed >= 0.2 * SECOND
    assert found.certain == 0  # where it began is unknown


def test_threads_that_ended_between_two_samples_are_reported_as_unseen(node: Spinners) -> None:
    # A shell that another one runs in a subshell's place: what its process ran before is none of its thread's files.
    vm = node.vm(code="exec python3 -c '" + """
import threading, time, sys
def burn():
    end = time.thread_time() + 0.05
    while time.thread_time() < end: pass
while True:
    thread = threading.Thread(target=burn); thread.start(); thread.join()
""" + "'")
    while len(os.listdir(f"/proc/{vm.vmm.pid}/task")) < 2:  # Python's own start is its main thread's
        time.sleep(0.01)
    sampler = started(node)
    account, main = ledger_of(node).of(vm.sandbox), booked(vm.vmm.pid)
    sampler.round()
    for number in range(1, 3):
        before = process_ran(vm.vmm.pid)
        assert before is not None
        while (now := process_ran(vm.vmm.pid)) is not None and now < before + 0.3 * SECOND:
            time.sleep(0.01)
        sampler.round()
        assert account.total.ran <= booked(vm.vmm.pid) - main  # the main thread's alone
        assert account.unseen >= number * 0.3 * SECOND - account.total.ran


def test_a_thread_that_got_anothers_number_is_not_booked_as_that(node: Spinners) -> None:
    vm = node.vm()
    sampler = started(node)
    sampler.round()
    known = vm.vmm.threads[vm.vmm.pid]
    stranger = known._replace(id=known.id._replace(starttime=known.id.starttime - 1))
    vm.vmm.threads[vm.vmm.pid] = stranger
    run_for(0.05, vm.vmm.pid)
    sampler.round()
    assert account_of(node, vm) == RunAccount()


def test_a_process_that_got_anothers_number_is_not_booked_as_that(node: Spinners) -> None:
    vm = node.vm(code="exec sleep 600")
    sampler = started(node)
    sampler.round()
    node.children[vm.sandbox].kill()
    node.children[vm.sandbox].wait()
    sampler.round()
    account = ledger_of(node).of(vm.sandbox)
    unseen = account.unseen
    time.sleep(0.02)  # start times are in steps of a hundredth of a second
    vm.vmm.pid = node.vm("b").vmm.pid  # until the next pass it is not known that it has ended
    run_for(0.05, vm.vmm.pid)
    sampler.round()
    assert account.unseen == unseen


@pytest.mark.parametrize("kernel", [False, True])
def test_what_was_away_for_a_while_is_not_born_again(node: Spinners, kernel: bool) -> None:
    sampler = started(node)
    vms = node.node_state.inventory.vms
    time.sleep(0.02)  # start times are in steps of a hundredth of a second
    vm = spins = node.vm()
    (thread,) = spins.vmm.threads.values()
    if kernel:  # as if it were a thread of the kernel's that works for another one
        vm, thread = node.vm("b", code="exec sleep 600"), thread._replace(role=ThreadRole.VHOST)
        vm.kernel_threads.append(thread)
        del vms[spins.sandbox]

    def recorded() -> int:
        return sampler.ledger.roles()[thread.role].ran

    run_for(0.1, thread.pid)
    sampler.round()
    once = recorded()
    assert once >= 0.1 * SECOND
    del vms[vm.sandbox]  # watch.only changed, or a claim that cannot be read
    sampler.round()
    run_for(0.2, thread.pid)
    vms[vm.sandbox] = vm
    sampler.round()
    assert recorded() == once  # what it ran meanwhile is not proved
    run_for(0.1, thread.pid)
    sampler.round()
    assert once + 0.1 * SECOND <= recorded() <= booked(thread.pid) - 0.2 * SECOND
    assert sampler.ledger.ended.unseen + sampler.ledger.of(vm.sandbox).unseen < 0.2 * SECOND


def test_of_what_ended_nothing_is_remembered(node: Spinners) -> None:
    vm = node.vm()
    sampler = started(node)
    sampler.round()
    del node.node_state.inventory.vms[vm.sandbox]
    sampler.round()
    sampler.round()
    # No public way in: nothing that is shown has the processes that are remembered.
    assert sampler._away == {vm.vmm.id}
    node.end(vm)
    sampler.round()
    assert sampler._away == set()


def test_a_vm_that_ends_leaves_its_account_in_the_sum(node: Spinners) -> None:
    vm = node.vm()
    other = node.vm("b")
    sampler = started(node)
    sampler.round()
    run_for(0.1, vm.vmm.pid)
    sampler.round()
    placed = account_of(node, vm).placed
    node.end(vm)
    sampler.round()
    assert list(sampler.ledger.sandboxes) == [other.sandbox]
    assert sampler.ledger.ended.total.placed == placed


def test_after_a_restart_the_books_go_on(node: Spinners, tmp_path: Path) -> None:
    vm, gone = node.vm(), node.vm("b")
    books = RunTimeBooks(tmp_path / "proof", "boot", ledger_of(node))
    sampler = started(node, books)
    sampler.round()
    began = sampler.ledger.began
    run_for(0.1, vm.vmm.pid)
    run_for(0.05, gone.vmm.pid)
    sampler.close()
    books.close()
    placed, spent = account_of(node, vm).placed, account_of(node, gone).placed
    assert min(placed - 0.1 * SECOND, spent - 0.05 * SECOND) >= 0
    node.end(gone)
    node.again()
    node.place(vm.sandbox, node.here)
    vm = node.meet(vm.sandbox)
    run_for(0.2, vm.vmm.pid)
    resumed = booked(vm.vmm.pid)
    books = RunTimeBooks(tmp_path / "proof", "boot", ledger_of(node))
    sampler = started(node, books)
    sampler.round()
    assert account_of(node, vm).placed == placed  # what ran meanwhile is not proved
    run_for(0.1, vm.vmm.pid)
    sampler.round()
    added = account_of(node, vm).placed - placed
    assert 0.1 * SECOND <= added <= booked(vm.vmm.pid) - resumed
    proof = sampler.since(0.0)
    assert proof.since == began
    assert proof.ended.total.placed == spent
    assert proof.watched < proof.until - proof.since - 0.15  # it ran for 0.2 s meanwhile
    assert sampler.since(time.time()).total.placed <= booked(vm.vmm.pid) - resumed
    books.close()


def test_sampling_that_takes_long_is_done_less_often(node: Spinners) -> None:
    for number in range(8):
        node.vm(str(number), code="exec sleep 600")
    sampler = started(node)
    pause = sampler.turn(every=0.0)
    while not sampler.rounds:
        pause = sampler.turn(every=0.0)
    assert sampler.cost > 0
    assert pause == sampler.cost / SHARE
    while (pause := sampler.turn(every=1000.0)) == BREATH:
        pass
    assert pause == 1000.0


def test_a_round_is_taken_in_slices(node: Spinners) -> None:
    for number in range(4):
        node.vm(str(number), code="exec sleep 600")
    sampler = started(node)

    class Slow(Schedstat):
        def ran(self, pid: int | str, tid: int | str) -> Ran | None:
            time.sleep(0.002)
            return super().ran(pid, tid)

    sampler.host = Slow()
    turns = 0
    while not sampler.rounds:
        assert sampler.turn(every=1000.0) in (0.005, 1000.0)
        turns += 1
    assert turns == 4
    assert sampler.ledger.watched > 0


def test_a_vm_whose_threads_are_not_readable_is_none_the_worse(node: Spinners) -> None:
    vm = node.vm()
    sampler = started(node)
    sampler.round()
    node.children[vm.sandbox].kill()
    os.waitid(os.P_PID, vm.vmm.pid, os.WEXITED | os.WNOWAIT)
    sampler.round()
    node.children[vm.sandbox].wait()
    sampler.round()
    assert account_of(node, vm).elsewhere == 0
