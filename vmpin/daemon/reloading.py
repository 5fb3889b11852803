"""SIGHUP: the configuration is loaded again, and used where it is valid.

What stays out: which keys need a restart (config/reload), and what follows from another value (reconciler). Called by
the watcher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from vmpin import log
from vmpin.config import reload
from vmpin.config.settings import Config
from vmpin.errors import ConfigError
from vmpin.host.unix_sockets import open_to

logger = logging.getLogger(__name__)


def reloaded(old: Config, load: Callable[[], Config]) -> Config | None:
    """Load the configuration again, and open the sockets to another `watch.status_group`. :returns: what is used from
    now on; None where it stays as it was, after an error in the log."""
    try:
        loaded = load()
        reload.refuse_empty(old, loaded)
        config = reload.keep_fixed(old, loaded)
        _open_sockets(old, config)
    except (ConfigError, OSError) as err:
        logger.error("the configuration stays as it was: %s", err)
        return None
    if later := reload.changes(config, loaded):
        logger.warning("changed paths, %s are used after a restart only: %s", " and ".join(reload.FIXED),
                       "; ".join(later))
    changed = "; ".join(reload.changes(old, config)) or "nothing changed"
    # At whichever of the two levels shows it.
    if quiet := not logger.isEnabledFor(logging.INFO):
        log.set_level(config.log.level)
    logger.info("configuration loaded again: %s", changed)
    if not quiet:
        log.set_level(config.log.level)
    return config


def _open_sockets(old: Config, new: Config) -> None:
    """:raises ConfigError: for a group that does not exist. :raises OSError: for a socket that is gone."""
    group = new.watch.status_group
    if group == old.watch.status_group:
        return
    open_to(old.paths.control_socket, group)
    address = old.metrics.address
    if address is not None and address.path is not None:
        open_to(address.path, group)
