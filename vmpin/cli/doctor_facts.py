"""Requests of doctor and gather to the watcher, and the facts of a node with or without one."""

import logging
from dataclasses import replace
from pathlib import Path

from vmpin.cli.control_client import Document, ask, read_status
from vmpin.config.settings import Config
from vmpin.doctor.node_facts import collect_facts
from vmpin.doctor.own_facts import lock_holder, unit
from vmpin.domain.facts import NodeFacts, WatcherFacts
from vmpin.errors import UsageError, VmpinError, WatcherError
from vmpin.feature import inspect_vms
from vmpin.host.procfs import Procfs
from vmpin.status.collector import version


def read_facts(config: Config, root: Path = Path("/")) -> NodeFacts:
    """All facts for the doctor. Faults of the node are facts, too, and raise nothing."""
    watcher = ask_watcher(config)
    status, trouble = ask_status(config, watcher)
    return collect_facts(config, root, watcher, status, trouble)


def ask_watcher(config: Config) -> WatcherFacts:
    """The state of the watcher, and its own description."""
    proc = Procfs(config.paths.proc)
    holder = lock_holder(config, proc)
    found = WatcherFacts(pid=holder, version=version(), config=config.data(),
                         config_errors=tuple(map(str, config.errors)),
                         unit="" if holder is None else unit(proc, holder))
    try:
        about = ask(config, {"op": "about"})
    except UsageError as err:  # it answered with a refusal: an older watcher, or we are not root
        return replace(found, state="running", why=str(err))
    except (WatcherError, ValueError) as err:
        if isinstance(err.__context__, PermissionError):  # this user may not connect: no fault of the watcher
            return replace(found, state="hidden" if holder is None else "running", why=str(err))
        return replace(found, state="mute", why=str(err))
    if about is not None:
        pid = int(about["pid"])
        return replace(found, state="running", pid=pid, about=about, unit=unit(proc, pid))
    if holder is None:
        return found
    return replace(found, state="mute",
                   why=f"process {holder} holds {config.paths.lock_file}, but its socket is closed")


def ask_status(config: Config, watcher: WatcherFacts) -> tuple[Document, str]:
    """The status document with the VMMs' cgroups, or {} and the reason."""
    try:
        if watcher.state in ("running", "hidden"):  # a mute one would cost a second deadline
            found = ask(config, {"op": "status", "wide": True})
            if found is not None:
                return _with_networks(config, found), ""
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # the checks report problems
        try:
            return _with_networks(config, read_status(config, wide=True)), ""
        finally:
            logging.disable(before)
    except (VmpinError, OSError, ValueError) as err:
        return {}, str(err)


def _with_networks(config: Config, found: Document) -> Document:
    inspect_vms(config, found["sandboxes"])
    return found
