"""The command line, run as a user does."""

from __future__ import annotations

import os
import subprocess

from documents import checked_output
from real_node import COMMAND

VERBS = ("watch", "status", "verify", "doctor", "plan", "repin", "unpin", "config", "install")


ESCAPE = "\x1b[2J\x07"


def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that needs no watcher."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("VMPIN_")}
    done = subprocess.run([*COMMAND, *args], env={**clean, **(env or {})}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)
    checked_output(args, done.stdout)
    return done


def refused(done: subprocess.CompletedProcess[str], *parts: str, code: int = 2) -> None:
    """An error is what failed, on what, and what to do: one line and a hint, and nothing else."""
    assert (done.returncode, done.stdout) == (code, ""), done
    lines = done.stderr.splitlines()
    assert len(lines) <= 2, lines
    assert lines[0].startswith("vmpin: ")
    assert all(line.startswith("  ") for line in lines[1:])
    for part in parts:
        assert part in done.stderr, done.stderr
