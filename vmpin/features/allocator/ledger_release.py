"""Switching the allocator off: shared containers get all online CPUs back, by CRI calls, and the ledger's file goes.

Containers with CPUs of their own keep these until they end; they are named in the log. Due when the watcher starts
with `allocate.mode` off or observe and finds a ledger, and at `vmpin unpin --all`.
"""

from __future__ import annotations

import logging

from vmpin.config.settings import Config
from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.features.allocator.allocate_settings import ledger_path
from vmpin.features.allocator.grants.live_change import release_pool
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs

logger = logging.getLogger(__name__)


def release_ledger(config: Config, timeout: float) -> bool:
    """Give the pool back, with the run directory's lock held. Interrupted at any moment and called again, it does the
    rest. :param timeout: in seconds, for each CRI call. :returns: whether nothing is left to do."""
    path = ledger_path(config)
    if not path.exists():
        return True
    ledger = LedgerFile(path, Procfs(config.paths.proc).boot_id()).load()
    if ledger is None:
        if not path.exists():  # damaged, and set aside
            logger.warning("allocate: switched off without a ledger: shared containers keep the CPUs that they have "
                           "until their pods are made again")
        path.unlink(missing_ok=True)  # of another boot: nothing of it runs
        return True
    from vmpin.sources import cri  # protobuf and gRPC, which a node without a ledger does not load

    updates, kept = release_pool(Topology.build(Sysfs(config.paths.sys).online()), ledger)
    servers = cri.sockets(config.paths.cri)
    done = failed = 0
    for container, cpus in updates:
        try:
            cri.update_cpus(servers, container, cpus, timeout)
            done += 1
        except SourceError as err:
            if getattr(err, "code", "") == "NOT_FOUND":
                continue  # it has ended meanwhile
            failed += 1
            logger.warning("not given all CPUs container=%s: %s", container, err)
            if isinstance(err, cri.NoRuntime) or cri.is_mute(err):
                break
    if failed:
        logger.error("allocate: not every shared container has all CPUs again; the ledger stays until then")
        return False
    path.unlink(missing_ok=True)
    logger.info("allocate: switched off; shared containers with all online CPUs again: %d", done)
    if kept:
        logger.warning("allocate: these containers keep their CPUs until they end: %s", ", ".join(kept))
    return True
