"""What a test counts as system calls."""

from __future__ import annotations

import os

from system_calls import system_calls


class Garbage:
    """In a cycle, so that only the collector ends it."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        os.getppid()


def test_calls_are_counted_by_their_names_without_those_of_garbage() -> None:
    def work() -> list[list[int]]:
        os.getpid()
        Garbage()
        return [[] for _ in range(100_000)]

    assert system_calls(work) == {"getpid": 1}
