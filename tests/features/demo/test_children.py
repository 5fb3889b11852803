"""The demo's children are waited for, whatever moment a signal's exception comes at."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from vmpin.features.demo import children

#: Ends when its standard input does.
WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


class Interrupted(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    def interrupt(number: int, _: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_command_that_ends_gives_its_exit_code() -> None:
    assert children.run([sys.executable, "-c", "raise SystemExit(3)"], 120) == 3


def test_a_child_has_ended_when_it_has_whether_it_was_reaped_or_not() -> None:
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as process:
        assert not children.ended(process)
        assert process.stdin is not None
        process.stdin.close()
        assert children.ended(process, 120)
        assert children.ended(process)
        assert process.wait() == 0
        assert children.ended(process)


def test_a_command_that_takes_too_long_is_killed_and_reaped() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:  # the next one's pid shows that it is gone
        with pytest.raises(subprocess.TimeoutExpired):
            children.run(["sleep", "600"], 0.01)
        assert not children.ended(other)
        other.kill()


def interrupted_wait(process: subprocess.Popen[bytes]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    while not children.ended(process):
        pass


@pytest.mark.usefixtures("alarm")
def test_exceptions_of_a_signal_handler_leave_a_child_that_can_be_waited_for() -> None:
    """With `Popen.poll` in place of `ended` some of these hang the wait: its lock stays taken."""
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as process:
        for _ in range(300):
            with pytest.raises(Interrupted):
                interrupted_wait(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
