"""How much a command and a starting watcher load: each module takes time before the first thread is placed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from test_floors import top


def of_features(modules: Iterable[str]) -> set[str]:
    """The modules of features, without what every command loads of each: its package and settings."""
    return {name for name in modules if name.startswith("vmpin.features.") and name.count(".") > 2
            and not name.endswith("_settings")}


_COMMAND = """\
import json, sys, typing
compiled, init = [], typing.ForwardRef.__init__
typing.ForwardRef.__init__ = lambda self, text, *rest, **more: compiled.append(text) or init(self, text, *rest, **more)
from vmpin.cli.main import main
try:
    sys.exit(main(sys.argv[1:]))
finally:
    print(json.dumps([sorted(sys.modules), compiled]), file=sys.stderr)
"""


def loaded_by(run: Path, *arguments: str) -> tuple[str, set[str]]:
    """The output of a command, and the modules that it loads. No VM of this machine is its own.

    Nor has a named tuple of these annotations as texts: the first that typing compiles takes 5 % of such a command."""
    ran = subprocess.run([sys.executable, "-c", _COMMAND, *arguments], capture_output=True, timeout=120, text=True,
                         env={**os.environ, "VMPIN_PATHS_RUN": str(run), "VMPIN_WATCH_ONLY": "none"})
    assert ran.returncode == 0, ran.stderr
    modules, compiled = json.loads(ran.stderr)
    assert "vmpin.cli.main" in modules
    assert compiled == []
    assert not of_features(modules)
    return ran.stdout, set(modules)


def own_modules(modules: Iterable[str]) -> int:
    """How many of them are vmpin's, without the package and settings of each feature. Each takes some 0.3
    ms; a limit leaves room for three more."""
    return sum(top(name) == "vmpin" and not name.startswith("vmpin.features.") for name in modules)


def of_logging() -> set[str]:
    """The modules that this Python's own logging loads: with 3.14 dataclasses and inspect, for coloured tracebacks."""
    ran = subprocess.run([sys.executable, "-c", "import json, logging, sys; print(json.dumps([*sys.modules]))"],
                         capture_output=True, timeout=120, check=True)
    return {*json.loads(ran.stdout)}


@contextlib.contextmanager
def watcher_that_answers(run: Path, requests: list[dict[str, object]], answer: bytes) -> Iterator[None]:
    """A control socket that gives one answer to these requests, each from a connection of its own."""
    def serve(made: socket.socket) -> None:
        for request in requests:
            connection, _ = made.accept()
            with connection:
                assert json.loads(connection.makefile().readline()) == request
                connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(run / "vmpin.sock"))
        made.listen()
        made.settimeout(120)
        thread = threading.Thread(target=serve, args=(made,))
        thread.start()
        yield
        thread.join()


#: Each of them takes a tenth of a short command, or more.
_HEAVY = {"asyncio", "rich", "yaml", "qemu", "psutil", "dataclasses", "inspect", "datetime", "email",
          "importlib.metadata", "subprocess", "shutil", "ssl", "google", "grpc", "sqlite3"}


def test_status_as_json_loads_neither_asyncio_nor_rich_nor_yaml(tmp_path: Path) -> None:
    """It is asked every few seconds by who watches many nodes; each of these would double its time."""
    answer = b'{"version":1,"sandboxes":[]}\n'
    with watcher_that_answers(tmp_path, [{"op": "status"}], answer):
        output, modules = loaded_by(tmp_path, "status", "-o", "json")
    assert output == answer.decode()
    assert not modules & {*_HEAVY, "logging"}
    assert own_modules(modules) <= 29


def test_reconcile_through_the_watcher_loads_no_pass_and_asks_no_names_for_nothing(tmp_path: Path) -> None:
    answer = b'{"version":1,"vms":3,"operations":[]}\n'
    with watcher_that_answers(tmp_path, [{"op": "reconcile", "sandbox": None}], answer):
        output, modules = loaded_by(tmp_path, "repin")
    assert output == "3 VMs, nothing to change\n"
    assert not modules & {*_HEAVY, "logging", "vmpin.reconcile", "vmpin.host.procfs"}
    assert own_modules(modules) <= 29


def test_reconcile_without_a_watcher_loads_no_more_than_its_pass(tmp_path: Path) -> None:
    output, modules = loaded_by(tmp_path, "repin")
    assert output == "0 VMs, nothing to change\n"
    assert not (modules - of_logging()) & {*_HEAVY, "vmpin.domain.drift"}
    assert own_modules(modules) <= 106


def test_the_version_loads_nothing_that_finds_packages(tmp_path: Path) -> None:
    output, modules = loaded_by(tmp_path, "--version")
    assert output.startswith("vmpin ")
    assert not modules & {*_HEAVY, "logging", "zipfile", "vmpin.reconcile"}
    assert own_modules(modules) <= 27


_FIRST_PASS = """\
import json, sys
sys.argv = ["vmpin"]
import vmpin.cli.main, vmpin.cli.watch, vmpin.log, vmpin.reconcile.one_pass, vmpin.reconcile.reconciler
import vmpin.host.lock, vmpin.sources.spool
import re
patterns = {id(value) for name, module in sys.modules.items() if name.startswith("vmpin")
            for value in vars(module).values() if isinstance(value, re.Pattern)}
print(json.dumps([sorted(sys.modules), len(patterns)]))
"""


def test_what_the_first_pass_needs_loads_neither_asyncio_nor_what_leaving_takes() -> None:
    """A VM's threads wait for it while the watcher starts."""
    ran = subprocess.run([sys.executable, "-c", _FIRST_PASS], capture_output=True, timeout=120, check=True)
    loaded_modules, patterns = json.loads(ran.stdout)
    modules = set(loaded_modules)
    assert not of_features(modules)
    assert not modules & {"vmpin.domain.drift", "vmpin.pinning.rival_writers"}, "those are for a repair"
    loaded = {name.partition(".")[0] for name in modules - of_logging()}
    assert "vmpin" in loaded
    assert not loaded & {"asyncio", "socket", "ssl", "subprocess", "shutil", "rich", "google", "qemu"}
    # Each dataclass takes as long to make as five named tuples, and the module loads inspect: 17 ms in all.
    assert not loaded & {"dataclasses", "inspect", "platform", "locale", "datetime"}
    assert own_modules(modules) <= 96
    assert patterns <= 12, "those that few passes need are texts, which re compiles at their first use"


_READY = """\
import json, sys
from vmpin.cli.watch import asyncio_without_tls
assert asyncio_without_tls() is sys.modules["asyncio"]
import vmpin.daemon.task_table, vmpin.daemon.watcher
modules = sorted(sys.modules)
import ssl
print(json.dumps([modules, ssl.OPENSSL_VERSION]))
"""


def test_a_watcher_is_ready_before_it_loads_what_the_first_guest_sample_or_event_takes() -> None:
    """After its first pass it connects to the runtime; a container that is created then waits for it."""
    ran = subprocess.run([sys.executable, "-c", _READY], capture_output=True, timeout=120, check=True)
    modules, openssl = json.loads(ran.stdout)
    assert openssl, "what imports ssl later gets it"
    loaded = {name.partition(".")[0] for name in modules}
    assert not loaded & {"ssl", "_ssl", "sqlite3", "google", "grpc", "email", "ctypes", "yaml"}
    assert not set(modules) & {"importlib.metadata", "vmpin.domain.guest_report",
                               "vmpin.guests.vm_guest", "vmpin.sources.nri.session"}
    assert own_modules(modules) <= 135
