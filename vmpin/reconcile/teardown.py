"""Removing vmpin's traces from a node: original masks are restored, and the run directory is emptied
(`watch.on_exit: unpin` and `vmpin unpin --all`).
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

from vmpin.config.settings import Config
from vmpin.domain.model import SandboxId
from vmpin.feature import features, present, settlements
from vmpin.host import lock
from vmpin.pinning.apply import Result
from vmpin.reconcile import state_file
from vmpin.reconcile.reconciler import Reconciler
from vmpin.reconcile.view import NodeView

logger = logging.getLogger(__name__)


def give_all_back(reconciler: Reconciler) -> list[Result]:
    """Restore the original masks of all threads, have features give back what they changed of these (what they could
    not is left to `forget`), and suspend all sandboxes. A second call restores those of threads that have appeared
    since, and masks that were refused."""
    view = reconciler.view
    sandboxes = view.all_sandboxes()
    results = reconciler.unpin(sandboxes, leaving=True)
    settle(view, sandboxes)  # before guests are asked, which takes seconds
    return results


def settle(view: NodeView, sandboxes: Collection[SandboxId]) -> bool:
    """Have features give back what they changed of sandboxes. :returns: whether all of that was possible."""
    return all_done("not given back", settlements(view, sandboxes))


def all_done(failed: str, parts: Iterable[tuple[str, Callable[[], bool | None]]]) -> bool:
    """Call the parts of all features; one that fails, whatever the reason, keeps no other from its work.
    :param failed: what the log says of it. :param parts: with the features' names.
    :returns: False if one has failed or returned False."""
    done = True
    for name, part in parts:
        try:
            done &= part() is not False
        except Exception as err:
            logger.error("%s feature=%s: %s: %s", failed, name, type(err).__name__, err)
            done = False
    return done


def forget(config: Config, reconciler: Reconciler) -> bool:
    """Remove vmpin's files, with the lock held; but keep them if some masks are not restored, to try again. What
    another program has put in a file's place, such as a directory, stays, and is logged.
    :returns: whether everything was removed."""
    given_back = all_done("not given back", ((feature.name, partial(feature.give_back, config))
                                             for feature in features() if feature.give_back is not None))
    if reconciler.node_state.originals:
        reconciler.node_state.save()
        logger.error("not all masks restored sandboxes=%d: the original masks are still in %s",
                     len(reconciler.node_state.originals), config.paths.state_file)
        return False
    lock.note_end_of_use(config.paths.lock_file)  # a kill from now on leaves the record incomplete
    if not given_back:
        return False
    # Not at the top: a starting watcher does not need them, and asyncio takes as long as all other imports.
    from vmpin.host import sockets
    from vmpin.sources.spool import Spool

    removed = [_is_removed(path) for path in _files(config)]
    for path in _sockets(config):
        sockets.remove_left(path)
    Spool(config.paths.spool).remove_all()
    config.paths.lock_file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.rmdir(config.paths.status_socket.parent)
    with contextlib.suppress(OSError):  # it is systemd's, a mount, or has another program's file
        os.rmdir(config.paths.run)
    return all(removed)


def _is_removed(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError as err:
        logger.error("not removed: %s: %s", path, err.strerror)
        return False
    return True


def of_features(config: Config) -> list[str]:
    """Sentences on what features would give back in `forget`."""
    return [text for texts in present(feature.giving_back for feature in features()) for text in texts(config)]


def left(config: Config) -> list[Path]:
    """The existing files and directories that `forget` would remove."""
    paths = config.paths
    return [path for path in (*_files(config), *_sockets(config), paths.spool, paths.lock_file,
                              paths.status_socket.parent, paths.run)
            if os.path.lexists(path)]


def _sockets(config: Config) -> Iterable[Path]:
    return (path for paths in present(feature.sockets for feature in features()) for path in paths(config))


def _files(config: Config) -> Iterable[Path]:
    paths = config.paths
    kept = (paths.state_file, paths.originals_file,
            *(paths.run / name for feature in features() for name in feature.files))
    yield from (*kept, paths.notes_file, paths.hook_socket, paths.control_socket, paths.status_socket)
    for path in kept:
        yield from state_file.beside(path)
