"""An interactive shell in a terminal of its own, typed into as by a person; a watcher whose pods it may complete."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Seconds. A loaded machine takes long to start a shell.
PATIENCE = 120.0
PATIENT = {**os.environ, "VMPIN_COMPLETION_DEADLINE": "120"}
VMPIN = [sys.executable, "-m", "vmpin.cli"]


class TypedShell:
    """What is typed, and what the screen has shown since."""

    def __init__(self, terminal: int) -> None:
        self._terminal, self._seen = terminal, b""

    def type(self, text: str, until: str) -> str:
        """Type the text, and wait until the screen shows `until`. :returns: what it showed from then on."""
        self._seen = b""
        os.write(self._terminal, text.encode())
        deadline = time.monotonic() + PATIENCE
        while until.encode() not in self._seen:
            assert time.monotonic() < deadline, f"{until!r} does not appear: {self._seen!r}"
            if select.select([self._terminal], [], [], 1.0)[0]:
                self._seen += os.read(self._terminal, 65536)
        return self._seen.decode(errors="replace")


@contextmanager
def typed_shell(argv: Sequence[str], environment: Mapping[str, str], place: Path) -> Iterator[TypedShell]:
    """:param place: its directory, and its user's."""
    ours, its = pty.openpty()
    with subprocess.Popen(argv, stdin=its, stdout=its, stderr=its, cwd=place, start_new_session=True,
                          env={**environment, "HOME": str(place), "XDG_CONFIG_HOME": str(place), "TERM": "xterm"},
                          preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR))) as shell:
        os.close(its)
        try:
            yield TypedShell(ours)
        finally:
            shell.kill()
            os.close(ours)


@contextmanager
def answering_watcher(run: Path, sandboxes: Sequence[Mapping[str, object]]) -> Iterator[None]:
    """Answers every request on the control socket with a status document."""
    answer = json.dumps({"version": 1, "watcher": 5, "sandboxes": list(sandboxes)}).encode() + b"\n"

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

    run.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run / "vmpin.sock"))
        listener.listen(16)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def pod(number: int, namespace: str, name: str, *containers: str) -> dict[str, object]:
    """Its entry of the status document."""
    return {"id": f"{number:x}".ljust(64, "0"), "pod": {"namespace": namespace, "name": name},
            "containers": [{"id": f"{number:032x}{at:032x}", "name": each} for at, each in enumerate(containers, 1)]}


def offered(tmp_path: Path, line: str, environment: Mapping[str, str] = PATIENT) -> list[str]:
    """What completes the line at its end, as the shells' scripts ask for it; without a shell's quotes."""
    answer = tmp_path / "answer"
    answer.write_bytes(b"")
    ran = subprocess.run(VMPIN, timeout=120, capture_output=True, text=True, stdin=subprocess.DEVNULL, env={
        **environment, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "fish", "_ARGCOMPLETE_IFS": "\v",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line, "COMP_POINT": str(len(line))})
    assert (ran.stdout, ran.stderr) == ("", "")
    return [word for word in answer.read_text().split("\v") if word]
