"""Leaving a node as if vmpin had never been there: the masks from before, and nothing left in the run directory.

What stays out: guests' maps (guests), sandboxes that are excluded while the watcher runs (exclusion), and the
hooks (hooks_install).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from vmpin.config.settings import Config
from vmpin.pinning.apply import Result
from vmpin.reconcile import state_file
from vmpin.reconcile.reconciler import Reconciler

logger = logging.getLogger(__name__)


def give_all_back(reconciler: Reconciler) -> list[Result]:
    """Every thread gets the mask it had. Until `forget` nothing places them again. Called again it is about those that
    came since, and what was refused."""
    return reconciler.unpin(reconciler.all_sandboxes(), leaving=True)


def forget(config: Config, reconciler: Reconciler) -> bool:
    """Remove what is kept, with the lock held; where not every thread has its mask it stays, to be tried again.

    :returns: whether nothing is left.
    """
    if reconciler.originals.masks:
        reconciler.save()
        logger.error("sandboxes=%d have threads that kept their masks; what those had before is still in %s",
                     len(reconciler.originals.masks), config.paths.state_file)
        return False
    # Here, as a watcher that starts does not leave: asyncio alone takes as long as everything else that it loads.
    import shutil

    from vmpin.host import unix_sockets

    for path in _files(config):
        path.unlink(missing_ok=True)
    if config.metrics.address is not None and config.metrics.address.path is not None:
        unix_sockets.remove_left(config.metrics.address.path)
    shutil.rmtree(config.paths.spool, ignore_errors=True)
    config.paths.lock_file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # systemd's, a mount, or with a file of somebody else's in it
        os.rmdir(config.paths.run)
    return True


def left(config: Config) -> list[Path]:
    """What `forget` would remove that is there."""
    address = config.metrics.address
    metrics = [] if address is None or address.path is None else [address.path]
    return [path for path in (*_files(config), *metrics, config.paths.spool, config.paths.lock_file,
                              config.paths.run)
            if os.path.lexists(path)]


def _files(config: Config) -> Iterable[Path]:
    return (config.paths.state_file, config.paths.notes_file, config.paths.proof_file,
            config.paths.hook_socket, config.paths.control_socket,
            *state_file.beside(config.paths.state_file), *state_file.beside(config.paths.proof_file))
