"""Passes of commands without a watcher: `vmpin repin` and `unpin`, and the view that `status`, `plan` and `verify`
show. They read the state file and the spool, and write only with the lock held.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from vmpin.config.settings import Config
from vmpin.domain.model import SandboxId
from vmpin.host.lock import Lock
from vmpin.pinning.apply import Result
from vmpin.pinning.plan import SetAffinity
from vmpin.reconcile.intake import take_spool
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.reconcile.teardown import forget, give_all_back, settle
from vmpin.reconcile.view import NodeView
from vmpin.sources.spool import Spool

Released = TypeVar("Released")


def inspect(config: Config) -> tuple[NodeView, PassReport]:
    """The node as a watcher would see it now, and the operations that it would carry out."""
    reconciler = Reconciler(config, acts=False)
    take_spool(reconciler.node_state, Spool(config.paths.spool), set(), tidy=False)
    report = _passes(reconciler, act=False)
    return reconciler.view, report


def reconcile(config: Config, sandboxes: Sequence[SandboxId] | None) -> tuple[NodeView, PassReport]:
    """Make one pass. :param sandboxes: the suspended sandboxes to resume; None: all of them."""
    with Lock(config.paths.lock_file) as lock:
        reconciler = Reconciler(config, used=lock.used)
        spool = Spool(config.paths.spool)
        names = take_spool(reconciler.node_state, spool, set())
        reconciler.take_back(list(reconciler.node_state.state.sandboxes) if sandboxes is None else sandboxes)
        report = _passes(reconciler, act=True)
        if reconciler.node_state.save():
            spool.remove(names)
        settle(reconciler.view, list(reconciler.node_state.state.sandboxes) if sandboxes is None else sandboxes)
        return reconciler.view, report


def unpin(config: Config, sandboxes: Sequence[SandboxId] | None) -> tuple[NodeView, list[Result], bool]:
    """Restore original masks. Guests keep their maps.
    :returns: the view, the results, and whether features gave back all that they changed of the sandboxes."""
    with Lock(config.paths.lock_file) as lock:
        reconciler = _read(config, used=lock.used)
        view = reconciler.view
        wanted = view.all_sandboxes() if sandboxes is None else sandboxes
        results = reconciler.unpin(wanted)
        return view, results, settle(view, wanted)


def plan_unpin(config: Config, sandboxes: Sequence[SandboxId] | None) -> tuple[NodeView, list[SetAffinity]]:
    """The operations of `unpin` and `leave`; nothing is changed. :param sandboxes: None: all."""
    reconciler = _read(config, acts=False)
    view = reconciler.view
    return view, reconciler.restoring(view.all_sandboxes() if sandboxes is None else sandboxes)


def leave(config: Config, release: Callable[[NodeView], Released]) -> tuple[NodeView, list[Result], Released, bool]:
    """Restore all original masks, and remove vmpin's files. If it was interrupted, another call completes it.
    :param release: has the guests remove their maps, which needs the files.
    :returns: the view of the node, with the remaining original masks; the results; the value of `release`; whether
        the files were removed: they stay where not everything could be given back."""
    with Lock(config.paths.lock_file) as lock:
        try:
            reconciler = _read(config, used=lock.used)
        except BaseException:
            lock.undo()
            raise
        results = give_all_back(reconciler)
        released = release(reconciler.view)
        return reconciler.view, results, released, forget(config, reconciler)


def _read(config: Config, acts: bool = True, used: bool | None = None) -> Reconciler:
    """A reconciler that has read the spool and the node, and changed neither, in order to restore masks: it records no
    mask as an original one. :param used: see `NodeState`."""
    reconciler = Reconciler(config, acts, used=used)
    reconciler.node_state.original_masks.records = False
    take_spool(reconciler.node_state, Spool(config.paths.spool), set(), tidy=False)
    reconciler.resync(act=False, full=True)
    return reconciler


def _passes(reconciler: Reconciler, act: bool) -> PassReport:
    """A pass, and a second one if QMP identified more threads."""
    report = reconciler.resync(act, full=True)
    vms = reconciler.node_state.needing_qmp()
    if not vms:
        return report
    import asyncio  # not at the top: it takes a tenth of a second on a slow machine, and few nodes use QMP

    from vmpin.vmm import qmp

    async def ask_all() -> list[bool]:
        return list(await asyncio.gather(*(qmp.query_threads(vm) for vm in vms)))

    if not any(asyncio.run(ask_all())):
        return report
    again = reconciler.resync(act)
    first = report.results if act else ()
    return PassReport((*first, *again.results), again.vms, report.seconds + again.seconds)
