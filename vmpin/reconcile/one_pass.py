"""One pass without a watcher: what `vmpin reconcile` does alone, and what `status`, `plan` and `verify` look at when
none runs. Reads the state file and the spool; writes only when it acts, and then with the lock held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from vmpin.config.settings import Config
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.host.lock import Lock
from vmpin.pinning.apply import Result
from vmpin.pinning.plan import SetAffinity
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.reconcile.view import NodeView
from vmpin.runtime.oci import parse_message
from vmpin.sources.hook_state import moment
from vmpin.sources.spool import Spool
from vmpin.vmm.inventory import Vm
from vmpin.vmm.qemu_cmdline import qmp_sockets

logger = logging.getLogger(__name__)

Released = TypeVar("Released")


def inspect(config: Config) -> tuple[NodeView, PassReport]:
    """The node as a watcher would see and plan it now; the report's operations are not carried out."""
    reconciler = Reconciler(config, acts=False)
    take(reconciler, Spool(config.paths.spool), set(), tidy=False)
    report = _passes(reconciler, act=False)
    return reconciler.view, report


def reconcile(config: Config, sandboxes: Sequence[SandboxId] | None) -> tuple[NodeView, PassReport]:
    """One pass. Sandboxes that were unpinned by hand are taken back (None: all of them)."""
    with Lock(config.paths.lock_file):
        reconciler = Reconciler(config)
        spool = Spool(config.paths.spool)
        names = take(reconciler, spool, set())
        reconciler.take_back(list(reconciler.state.sandboxes) if sandboxes is None else sandboxes)
        report = _passes(reconciler, act=True)
        if reconciler.save():
            spool.remove(names)
        return reconciler.view, report


def unpin(config: Config, sandboxes: Sequence[SandboxId] | None) -> tuple[NodeView, PassReport]:
    """Give the masks from before back. What guests were told stays (guests)."""
    with Lock(config.paths.lock_file):
        reconciler = Reconciler(config)
        take(reconciler, Spool(config.paths.spool), set(), tidy=False)
        reconciler.resync(act=False, full=True)
        wanted = reconciler.all_sandboxes() if sandboxes is None else sandboxes
        return reconciler.view, PassReport(tuple(reconciler.unpin(wanted)), len(wanted), 0.0)


def plan_unpin(config: Config, sandboxes: Sequence[SandboxId] | None) -> tuple[NodeView, list[SetAffinity]]:
    """The operations of `unpin` and `leave`; nothing is changed. :param sandboxes: None for all."""
    reconciler = Reconciler(config, acts=False)
    take(reconciler, Spool(config.paths.spool), set(), tidy=False)
    reconciler.resync(act=False, full=True)
    return reconciler.view, reconciler.restoring(reconciler.all_sandboxes() if sandboxes is None else sandboxes)


def leave(config: Config, release: Callable[[NodeView], Released]) -> tuple[NodeView, list[Result], Released]:
    """Give everything back, and remove what is kept. Ended at any moment and called again, it does what is left.

    :param release: has the guests remove their maps, which takes what is kept of them.
    :returns: the view of the node, with the original masks that are left; results; what `release` returned.
    """
    from vmpin.reconcile import teardown

    with Lock(config.paths.lock_file):
        reconciler = Reconciler(config)
        take(reconciler, Spool(config.paths.spool), set(), tidy=False)
        reconciler.resync(act=False, full=True)
        results = teardown.give_all_back(reconciler)
        released = release(reconciler.view)
        teardown.forget(config, reconciler)
        return reconciler.view, results, released


def take(reconciler: Reconciler, spool: Spool, but: set[str], tidy: bool = True) -> list[str]:
    """Take the spooled messages in, without those named in `but`. :returns: their names."""
    waiting = spool.waiting(but, tidy)
    if waiting:
        logger.info("took messages=%d from the spool", len(waiting))
    return [name for name, raw in waiting if hear(reconciler, raw) is not None]


def hear(reconciler: Reconciler, raw: bytes) -> set[SandboxId] | None:
    """Take one message in. :returns: the sandboxes it is about, none when it says nothing that can be used; None when
    that cannot be looked up just now, and it is to be heard again."""
    try:
        message = parse_message(raw)
        sandboxes = reconciler.hook(message)
    except SourceError as err:
        reconciler.tally.hooks["refused"] += 1
        logger.warning("a hook's message says nothing: %s", err)
        return set()
    except OSError as err:
        logger.error("what a hook's message speaks of cannot be looked up, it is heard again later: %s", err)
        return None
    tally = reconciler.tally
    tally.hooks["taken"] += 1
    tally.last_hook_at = max(tally.last_hook_at or 0.0, moment(message) / 1e9)  # it may have lain in the spool
    return sandboxes


def _passes(reconciler: Reconciler, act: bool) -> PassReport:
    """A pass, and another when QMP told more."""
    report = reconciler.resync(act, full=True)
    vms = reconciler.wanting_qmp()
    if not vms:
        return report
    import asyncio  # a tenth of a second on a slow machine, and most nodes never ask

    async def ask_all() -> list[bool]:
        return list(await asyncio.gather(*(ask(vm) for vm in vms)))

    if not any(asyncio.run(ask_all())):
        return report
    again = reconciler.resync(act)
    first = report.results if act else ()
    return PassReport((*first, *again.results), again.vms, report.seconds + again.seconds)


async def ask(vm: Vm) -> bool:
    """Ask a VM's QEMU which thread is which; True when it answered. Each thread set is asked about once."""
    from vmpin.vmm import qmp  # what is imported at the top a starting watcher waits for, before its first pass

    vm.qmp_asked = frozenset(vm.vmm.stats)
    for path in qmp_sockets(vm.vmm.argv):
        vm.qmp = await qmp.query(path, pid=vm.vmm.pid)
        if vm.qmp is not None:
            return True
    return False
