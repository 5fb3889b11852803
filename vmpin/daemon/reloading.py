"""Loads the configuration again at SIGHUP, and keeps the values of keys that take a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable

from vmpin import log
from vmpin.config.settings import Config, to_plain, with_values
from vmpin.domain.terminal import as_written
from vmpin.errors import ConfigError
from vmpin.feature import features, present
from vmpin.host.sockets import open_to

logger = logging.getLogger(__name__)

#: Keys that take a restart, besides the paths.
FIXED = ("watch.nri", "watch.kubelet", "watch.births")


def reloaded(old: Config, load: Callable[[], Config]) -> Config | None:
    """Load the configuration again, and open the sockets to a new `watch.status_group`.
    :returns: the configuration to use from now on; None after an error, which is logged: the old one stays."""
    try:
        loaded = load()
        refuse_empty(old, loaded)
        config = keep_fixed(old, loaded)
        _open_sockets(old, config)
    except (ConfigError, OSError) as err:
        logger.error("configuration not loaded: %s; the previous one stays in use", err)
        return None
    for warning in loaded.warnings:
        logger.warning("configuration: %s", warning)
    if later := changes(config, loaded):
        logger.warning("changes of %s and %s take a restart: %s",
                       ", ".join(_fixed()[:-1]), _fixed()[-1], "; ".join(later))
    changed = "; ".join(changes(old, config)) or "nothing changed"
    # Log it at whichever of the two levels shows it.
    if quiet := not logger.isEnabledFor(logging.INFO):
        log.set_level(config.log.level)
    logger.info("configuration loaded again: %s", changed)
    if not quiet:
        log.set_level(config.log.level)
    return config


def _open_sockets(old: Config, new: Config) -> None:
    """Let the configuration's new group connect to the sockets.
    :raises ConfigError: for a group that does not exist. :raises OSError: for a socket that is gone."""
    group = new.watch.status_group
    if group == old.watch.status_group:
        return
    open_to(old.paths.control_socket, group)
    open_to(old.paths.status_socket, group)
    for paths in present(feature.sockets for feature in features()):
        for path in paths(old):
            open_to(path, group)


def refuse_empty(old: Config, new: Config) -> None:
    """Refuse a file that set keys before and sets none now: while an editor or a ConfigMap replaces it, it is empty or
    absent for a moment, and the defaults would move every thread of the node. :raises ConfigError: then."""
    before = {origin for origin in old.origin.values() if _is_file(origin)}
    if before and not any(map(_is_file, new.origin.values())):
        raise ConfigError(f"{', '.join(sorted(before))}: no longer sets any key: it is empty, truncated or missing",
                          "to go back to the defaults, restart the watcher")


def _is_file(origin: str) -> bool:
    return origin not in ("default", "flag") and not origin.startswith("environment ")


def changes(old: Config, new: Config) -> list[str]:
    """Each key whose value changes, as `key: old -> new`, in the order of the table of settings."""
    return [f"{key}: {_shown(old.values[key])} -> {_shown(value)}" for key, value in new.values.items()
            if old.values[key] != value]


def _shown(value: object) -> str:
    return as_written(to_plain(value)) or "unset"


def _fixed() -> tuple[str, ...]:
    """The sections, and the keys, of which a change takes a restart."""
    return ("paths", *(name for feature in features() for name in feature.fixed), *FIXED)


def keep_fixed(old: Config, new: Config) -> Config:
    """Take `old`'s values of the keys that take a restart: open sockets and files stay."""
    names = _fixed()
    fixed = {key: value for key, value in old.values.items() if key.partition(".")[0] in names or key in names}
    return with_values({**new.values, **fixed}, new.origin)
