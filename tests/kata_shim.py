"""Kata's shim as far as it counts CPUs: kata_shim.c, started as containerd starts the real one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from need import need_tool

NAME = "containerd-shim-kata-v2"


def built(path: Path) -> Path:
    """The program, under the shim's name."""
    made = path / NAME
    subprocess.run([need_tool("gcc", "cc"), "-O1", "-Wall", "-Werror", "-Wno-unused-result", "-pthread", "-o", made,
                    Path(__file__).with_suffix(".c")], check=True)
    return made


class Shim:
    """A shim that runs. It ends with its standard input.

    :param action: "start" has it started by a process that ends, as the runtimes do.
    :param cpus: its mask, and so its VMM's until another is set.
    """

    def __init__(self, program: Path, sandbox: str, cpus: Collection[int], action: str = "") -> None:
        argv = [str(program), "-namespace", "k8s.io", "-id", sandbox, *([action] if action else [])]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        self.pid, self.at_start = self._answer(), self._answer()
        if action:
            self._process.wait(300)

    def ask(self, *words: str) -> int:
        """Have it do something, and read the number that it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def counts(self) -> set[int]:
        """How many CPUs it finds now, wherever Kata counts them."""
        return {self.at_start, self.ask("create"), self.ask("config")}

    def vmm(self, argv: Sequence[str]) -> int:
        """Start a VMM. :returns: its pid"""
        return self.ask("vmm", *argv)

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(300)
        self._process.stdout.read()  # until the shim itself has ended, too
        self._process.stdout.close()

    def __enter__(self) -> Shim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
