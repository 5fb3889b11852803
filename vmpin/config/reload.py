"""What a configuration that is loaded again (SIGHUP) changes, and whether a running watcher takes it.

What stays out: loading it (config), and acting on what changed (watcher, reconciler).
"""

from __future__ import annotations

from vmpin.config.settings import Config, to_plain, with_values
from vmpin.errors import ConfigError

#: What a running watcher does not take from a configuration that is loaded again, beside the paths.
FIXED = ("watch.nri", "watch.kubelet", "watch.births", "metrics.address")


def refuse_empty(old: Config, new: Config) -> None:
    """An editor and a ConfigMap that is being replaced show an empty file, or none, for a moment. Taken as it is, it
    would move every thread of the node to the defaults' places.

    :raises ConfigError: when the file set keys before and sets none now.
    """
    before = {origin for origin in old.origin.values() if _is_file(origin)}
    if before and not any(map(_is_file, new.origin.values())):
        raise ConfigError(f"{', '.join(sorted(before))}: sets no key any more: it is empty, cut off or gone",
                          "to go back to the defaults, restart the watcher")


def _is_file(origin: str) -> bool:
    return origin not in ("default", "flag") and not origin.startswith("environment ")


def changes(old: Config, new: Config) -> list[str]:
    """Each key whose value is another, as `key: old -> new`, in the order of the table of settings."""
    return [f"{key}: {_shown(old.values[key])} -> {_shown(value)}" for key, value in new.values.items()
            if old.values[key] != value]


def _shown(value: object) -> str:
    found = to_plain(value)
    if isinstance(found, bool):
        return str(found).lower()
    return "unset" if found in (None, "") else str(found)


def keep_fixed(old: Config, new: Config) -> Config:
    """`new`, but with `old`'s values of the keys that take a restart: what is bound, open or written to stays."""
    fixed = {key: value for key, value in old.values.items() if key.startswith("paths.") or key in FIXED}
    return with_values({**new.values, **fixed}, new.origin)
