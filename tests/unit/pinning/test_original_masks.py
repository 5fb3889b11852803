"""The original masks."""

from __future__ import annotations

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadId, ThreadRole, VmThread
from vmpin.pinning.original_masks import OriginalMasks, ProcessMasks

PID = 4121
MAIN = ThreadId(PID, 7)
ALL, SOME, ONE = (CpuSet.parse(text) for text in ("0-7", "0-3", "2"))


def thread(tid: int, starttime: int = 7) -> VmThread:
    return VmThread(ThreadId(tid, starttime), ThreadRole.EMULATOR, "", PID)


def test_a_processs_main_mask_and_exceptions_are_kept() -> None:
    before = OriginalMasks().with_process(MAIN, [(thread(PID), ALL), (thread(PID + 1), ALL), (thread(PID + 2), ONE)])
    assert before.processes == {MAIN: ProcessMasks(ALL, {ThreadId(PID + 2, 7): ONE})}
    assert before.mask(thread(PID), MAIN) == ALL
    assert before.mask(thread(PID + 1), MAIN) == ALL
    assert before.mask(thread(PID + 2), MAIN) == ONE


def test_a_later_thread_has_the_main_threads_original_mask() -> None:
    before = OriginalMasks().with_process(MAIN, [(thread(PID), ALL), (thread(PID + 2), ONE)])
    assert before.mask(thread(PID + 9), MAIN) == ALL
    assert before.mask(thread(PID + 2, starttime=8), MAIN) == ALL  # the number was given to another thread


def test_a_recorded_process_is_not_recorded_again() -> None:
    before = OriginalMasks().with_process(MAIN, [(thread(PID), ALL)])
    assert before.with_process(MAIN, [(thread(PID), ONE), (thread(PID + 1), ONE)]) is before


def test_a_process_that_was_not_recorded_has_no_original_mask() -> None:
    before = OriginalMasks().with_process(MAIN, [(thread(PID), ALL)])
    assert before.mask(thread(PID), ThreadId(PID, 8)) is None
    assert OriginalMasks().mask(thread(PID), MAIN) is None


def test_without_the_main_threads_mask_no_process_is_recorded() -> None:
    assert OriginalMasks().with_process(MAIN, [(thread(PID + 1), ALL)]) == OriginalMasks()
    # On Linux 6.1 a task whose only CPU went off shows no CPU: no mask to give back.
    assert OriginalMasks().with_process(MAIN, [(thread(PID), EMPTY), (thread(PID + 1), ALL)]) == OriginalMasks()
    masks = OriginalMasks().with_process(MAIN, [(thread(PID), ALL), (thread(PID + 1), EMPTY)])
    assert masks.processes[MAIN].others == {}


def test_processes_that_ended_are_forgotten() -> None:
    other = ThreadId(5000, 9)
    before = OriginalMasks().with_process(MAIN, [(thread(PID), ALL)])
    both = before.with_process(other, [(VmThread(other, ThreadRole.VIRTIOFSD, "", 5000), SOME)])
    assert both.only([MAIN, other, ThreadId(1, 1)]) is both
    assert both.only([other]).processes == {other: ProcessMasks(SOME)}
    assert both.only([MAIN]) == before
    assert both.only([]) == OriginalMasks()
