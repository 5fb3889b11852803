"""What doctor and gather ask the watcher, and what they find without one."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from vmpin.cli.common import Document, ask, read_status
from vmpin.config.settings import Config
from vmpin.doctor.collect.node_facts import collect_facts
from vmpin.doctor.collect.own_facts import lock_holder, unit
from vmpin.domain.facts import NodeFacts, WatcherFacts
from vmpin.errors import UsageError, VmpinError, WatcherError
from vmpin.host.procfs import Procfs
from vmpin.status.about import version


def read_facts(config: Config, root: Path = Path("/")) -> NodeFacts:
    """Everything that the doctor judges. Never fails for what the node is like: that is what is to be found out."""
    watcher = ask_watcher(config)
    status, trouble = ask_status(config, watcher)
    return collect_facts(config, root, watcher, status, trouble)


def ask_watcher(config: Config) -> WatcherFacts:
    """Whether one runs, and what it says of itself."""
    proc = Procfs(config.paths.proc)
    holder = lock_holder(config, proc)
    found = WatcherFacts(pid=holder, version=version(), config=config.data(), unit=_unit(proc, holder))
    try:
        about = ask(config, {"op": "about"})
    except UsageError as err:  # it answered, and said no: an older one, or we are not root
        return replace(found, state="running", why=str(err))
    except (WatcherError, ValueError) as err:
        if isinstance(err.__context__, PermissionError):  # we may not ask, which is no fault of the watcher's
            return replace(found, state="hidden" if holder is None else "running", why=str(err))
        return replace(found, state="mute", why=str(err))
    if about is not None:
        pid = int(about["pid"])
        return replace(found, state="running", pid=pid, about=about, unit=_unit(proc, pid))
    if holder is None:
        return found
    return replace(found, state="mute", why=f"process {holder} holds {config.paths.lock_file}, and nobody listens")


def _unit(proc: Procfs, pid: int | None) -> str:
    return "" if pid is None else unit(proc, pid)


def ask_status(config: Config, watcher: WatcherFacts) -> tuple[Document, str]:
    """The status document with the VMMs' cgroups, and why there is none."""
    try:
        if watcher.state in ("running", "hidden"):  # a mute one would be waited for once more
            found = ask(config, {"op": "status", "wide": True})
            if found is not None:
                return found, ""
        return _own_look(config), ""
    except (VmpinError, OSError, ValueError) as err:
        return {}, str(err)


def _own_look(config: Config) -> Document:
    """What is odd is the checks' to tell, and not the log's."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return read_status(config, wide=True)
    finally:
        logging.disable(before)
