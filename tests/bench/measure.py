"""Figures, and how they are taken: value and floor in turn, so that a busy machine weighs on both, and medians."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class CannotMeasure(Exception):
    """Something needed for a figure is missing or went wrong; the message says what."""


@dataclass(frozen=True)
class Figure:
    """One benchmark's outcome. `limit_on` is what the limit is on: "value", "ratio" or "difference" (value - floor).

    `floor` is the least that could do the same, in the same unit.
    """

    name: str
    value: float
    unit: str
    floor: float
    limit: float
    limit_on: str
    more: Mapping[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None

    @property
    def ok(self) -> bool:
        if self.limit_on == "ratio":
            return self.ratio is not None and self.ratio <= self.limit
        return (self.value - self.floor if self.limit_on == "difference" else self.value) <= self.limit

    def data(self) -> dict[str, object]:
        ratio = self.ratio
        return {"name": self.name, "value": round(self.value, 4), "unit": self.unit, "floor": round(self.floor, 4),
                "ratio": None if ratio is None else round(ratio, 3), "limit": self.limit, "ok": self.ok,
                "limit_on": self.limit_on, **self.more}


def in_turn(rounds: int, value: Callable[[], float], floor: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Both measured once for nothing, and then `rounds` times in turn."""
    value()
    floor()
    values, floors = [], []
    for _ in range(rounds):
        values.append(value())
        floors.append(floor())
    return values, floors


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def timed_ms(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1000


def process_ms(argv: list[str], env: Mapping[str, str], stdin: bytes = b"", out: str = os.devnull) -> float:
    """A whole process, from before it exists until it is waited for.

    posix_spawn, as fork() of a large parent would be measured with it; `stdin` waits in a pipe, so it must fit there.
    """
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        if os.write(writer, stdin) != len(stdin):
            raise CannotMeasure(f"{len(stdin)} bytes do not fit into a pipe")
        os.close(writer)
        writer = -1
        actions = [(os.POSIX_SPAWN_DUP2, reader, 0),
                   (os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)]
        begin = time.perf_counter()
        pid = os.posix_spawn(argv[0], argv, env, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        spent = time.perf_counter() - begin
    finally:
        for fd in (reader, writer):
            if fd >= 0:
                os.close(fd)
    if status:
        raise CannotMeasure(f"{' '.join(argv)[:200]}: exit status {os.waitstatus_to_exitcode(status)}")
    return spent * 1000


def environment(**more: str | Path) -> dict[str, str]:
    """For the processes measured: nothing of the caller's, who may for example forbid Python to cache bytecode."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
            **{key: str(value) for key, value in more.items()}}


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
