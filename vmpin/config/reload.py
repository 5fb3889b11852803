"""What a reloaded configuration (SIGHUP) changes, and which of it a running watcher takes over.

What stays out: loading it (loading), and acting on the changes (the watcher, which calls this).
"""

from __future__ import annotations

from vmpin.config.settings import Config, to_plain, with_values
from vmpin.errors import ConfigError

#: Keys that take a restart, besides the paths.
FIXED = ("watch.nri", "watch.kubelet", "watch.births", "metrics.address")


def refuse_empty(old: Config, new: Config) -> None:
    """Refuse a file without keys after one with keys. An editor, or a ConfigMap that is being replaced, shows an empty
    file or none for a moment; the defaults would move every thread of the node.

    :raises ConfigError: when the file set keys before and sets none now.
    """
    before = {origin for origin in old.origin.values() if _is_file(origin)}
    if before and not any(map(_is_file, new.origin.values())):
        raise ConfigError(f"{', '.join(sorted(before))}: sets no key any more: it is empty, cut off or gone",
                          "to go back to the defaults, restart the watcher")


def _is_file(origin: str) -> bool:
    return origin not in ("default", "flag") and not origin.startswith("environment ")


def changes(old: Config, new: Config) -> list[str]:
    """Each key whose value changes, as `key: old -> new`, in the order of the table of settings."""
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
