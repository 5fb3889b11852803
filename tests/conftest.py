"""How all tests run: hypothesis without a deadline (the machines are shared), in CI always with the same examples."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from documents import recorded
from failed import FAILED
from hypothesis import settings
from lab.boots import BEFORE_A_RELEASE, IN_CI, LOCK, Background, Nodes
from not_tried import pytest_terminal_summary

from vmpin.cli import main as command

__all__ = ["pytest_terminal_summary"]

#: Each feature's tests have modules that others import by a name made of the feature's (metered.py, healthy_node.py).
sys.path += sorted(str(path) for path in (Path(__file__).parent / "features").iterdir() if path.is_dir())

# Half of the time of collecting ten thousand tests went to looking for garbage among them.
gc.disable()

settings.register_profile("desk", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# A job in the background of a script is started with SIGINT ignored, and so would be each process that a test starts
# to see it end by Ctrl-C. What is caught here is the default in them again.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # likewise under nohup, which is to go on meaning that here
    signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that is run within this process sets up logging as it wants it (vmpin/log.py), for good."""
    root, ours = logging.root, logging.getLogger("vmpin")
    before = root.level, ours.level
    yield
    root.setLevel(before[0])
    ours.setLevel(before[1])


@pytest.fixture(autouse=True)
def _documents_as_their_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each JSON document of a command that is run within this process is checked (documents.py)."""
    # No public way in: `main` hands a command line to this, and turns what it raises into a message.
    carry_out = command._carry_out

    def carried_out(arguments: Sequence[str]) -> int:
        with recorded(arguments):
            return carry_out(arguments)

    monkeypatch.setattr(command, "_carry_out", carried_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport,
                                                                                          pytest.TestReport]:
    report = yield
    item.stash[FAILED] = report.failed or (call.when != "setup" and item.stash.get(FAILED, False))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs in an event loop of its own. :returns: None for any other test."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name]
                                  for name in inspect.signature(pyfuncitem.obj).parameters}))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """pytest-timeout's timer is for all attempts together, and has run out where the first one hung: the second one
    has as long (`make test` in CI)."""
    if getattr(item, "execution_count", 1) > 1 and hasattr(item, "cancel_timeout"):
        signal.setitimer(signal.ITIMER_REAL, float(item.config.getoption("timeout")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the tests (`make test`), pytest-xdist deals out files in this order: the long ones
    begin, and the short ones of tests/unit fill up what is left. The nodes of the lab boot in the background
    (lab/boots.py) and are waited for at the end, the programs of the cluster (cluster/build.py) by its tests: where
    they have to be built, the build has the machine to itself then."""
    top = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        order = {"integration": 0, "features": 0, "soak": 1, "bench": 2, "cluster": 3, "lab": 5}
        if item.get_closest_marker("cluster"):
            return order["cluster"]
        return order.get(item.path.relative_to(top).parts[0], 4)

    items.sort(key=place)


class _Boots:
    """The nodes that this session boots and the programs that it builds, in the process that deals out the tests, or
    runs them all itself."""

    def __init__(self) -> None:
        self._place = TemporaryDirectory(prefix="vmpin-boots-")
        self.directory = Path(self._place.name)
        self._background: Background | None = None
        self._build: subprocess.Popen[bytes] | None = None

    def start(self, ids: Sequence[str]) -> None:
        """Boot the nodes whose tests are among these, and build what the cluster's take, unless that was done."""
        if self._build is None and any(name.startswith("tests/cluster/") for name in ids):
            # Its cache is locked: a test waits for it, and builds itself what this one could not.
            self._build = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", "cluster.build"],
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        boots = [boot for boot in (*IN_CI, *BEFORE_A_RELEASE) if any(name.endswith(f"[{boot}]") for name in ids)]
        if boots and self._background is None and os.geteuid() == 0:  # else the tests themselves say so
            subprocess.run(["modprobe", "-q", "overlay"], check=False)
            self._background = Background(boots, self.directory, LOCK)

    def end(self) -> None:
        if self._build is not None:
            self._build.terminate()
            self._build.wait()
        if self._background is not None:
            self._background.end()
        self._place.cleanup()


_BOOTS = pytest.StashKey[_Boots]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_BOOTS] = _Boots()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _BOOTS in config.stash:
        config.stash[_BOOTS].end()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.enable()
    gc.freeze()  # the tests themselves are there to the end
    if _BOOTS in session.config.stash and not session.config.option.collectonly:
        session.config.stash[_BOOTS].start([item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of pytest-xdist: a process that is to run tests."""
    node.workerinput["boots"] = str(node.config.stash[_BOOTS].directory)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    gc.enable()  # this process collects none itself
    node.config.stash[_BOOTS].start(ids)


@pytest.fixture(scope="session")
def nodes(pytestconfig: pytest.Config) -> Nodes:
    """Those that boot in the background of this session."""
    given = getattr(pytestconfig, "workerinput", None)
    return Nodes(pytestconfig.stash[_BOOTS].directory if given is None else Path(given["boots"]))
