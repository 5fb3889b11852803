"""Loading the configuration: defaults, then the file, then the environment, then flags; each value is checked once.

What stays out: the keys and their values (config.settings), and YAML (config.yaml_file). Called at the start of every
command, and by the watcher at SIGHUP (daemon.reloading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vmpin.config.settings import BY_KEY, SECTIONS, SETTINGS, Config, with_values
from vmpin.config.table_entry import Setting
from vmpin.cpuset import CpuSetError
from vmpin.errors import ConfigError

DEFAULT_FILE = Path("/etc/vmpin/vmpin.yaml")

#: Variables that set no key: VMPIN_DEBUG shows the traceback of an error of the operating system (cli/main), the
#: others are the tests' own (docs/testing.md).
_NO_KEYS = ("VMPIN_DEBUG", "VMPIN_LAB_", "VMPIN_FUZZ_", "VMPIN_SOAK_")
#: A pod has variables for each Service of its namespace: of vmpin-metrics VMPIN_METRICS_SERVICE_HOST and others.
_SERVICE = "_SERVICE_HOST"


class WatchedFile:
    """Whether the configuration's file was written, replaced or removed since it was looked at: at first when this is
    made, so before the file is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._identity()

    def changed(self) -> bool:
        """True once for each change."""
        before, self._seen = self._seen, self._identity()
        return self._seen != before

    def _identity(self) -> tuple[int, ...] | None:
        # A ConfigMap's file is a link to another file by then: its inode differs, and its time need not.
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def load(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """Put the configuration together: defaults, the file, VMPIN_ variables, then flags; the later, the stronger.
    :param file: the file asked for, which must exist; None takes the default file if there is one.
    :param flags: by key, from the command line.
    :raises ConfigError: naming the source, the key and the value."""
    given: dict[str, tuple[object, str]] = {setting.key: (setting.default, "default") for setting in SETTINGS}
    path = file or DEFAULT_FILE
    if file is not None or _is_there(path):
        given |= {key: (value, str(path)) for key, value in _read(path).items()}
    for setting, text in _from(environment).items():
        given[setting.key] = (text, f"environment {setting.variable}")
    for key, text in flags.items():
        if key not in BY_KEY:
            raise ConfigError(f"--set {key}={text}: unknown key {key!r}", _near(key))
        given[key] = (text, "flag")
    parsed: dict[str, object] = {}
    for key, (value, origin) in given.items():
        try:
            parsed[key] = BY_KEY[key].parse(value)
        except (ValueError, CpuSetError) as err:
            raise ConfigError(f"{origin}: {key}: {value!r}: {err}", BY_KEY[key].help) from err
    config = with_values(parsed, {key: origin for key, (_, origin) in given.items()})
    if config.allocate.live_annotations and not config.kubernetes.watch_pods:
        raise ConfigError("allocate.live_annotations is on and kubernetes.watch_pods is off: changed annotations come "
                          "with the pods' data that the reporter hands over", "switch both on, or the first one off")
    return config


def _from(environment: Mapping[str, str]) -> dict[Setting, str]:
    """Return what the environment sets. :raises ConfigError: for a variable that is named like vmpin's and sets no
    key."""
    services = [name.removesuffix(_SERVICE) for name in environment if name.endswith(_SERVICE)]
    others = (*_NO_KEYS, *(f"{name}{part}" for name in services for part in ("_SERVICE_", "_PORT")))
    by_variable = {setting.variable: setting for setting in SETTINGS}
    found = {}
    for name, text in environment.items():
        if not name.startswith("VMPIN_") or name.startswith(others):
            continue
        if name not in by_variable:
            raise ConfigError(f"environment {name}: sets no key that is known", _near(
                name.removeprefix("VMPIN_"), [each.removeprefix("VMPIN_") for each in by_variable], "VMPIN_"))
        found[by_variable[name]] = text
    return found


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # hidden from this user: reading it shows why


def _read(path: Path) -> dict[str, object]:
    """The keys of a file, as `section.key`. :raises ConfigError: for one that is not in the table."""
    from vmpin.config import yaml_file  # only when there is a file: YAML costs a third of a short command's start

    document = yaml_file.load(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: is no mapping of sections")
    found: dict[str, object] = {}
    for section, keys in document.items():
        if section not in SECTIONS:
            raise ConfigError(f"{path}: unknown section {section!r}", _near(str(section)))
        if not isinstance(keys, dict | None):
            raise ConfigError(f"{path}: {section}: {keys!r} is no mapping of keys to values")
        for name, value in (keys or {}).items():
            key = f"{section}.{name}"
            if key not in BY_KEY:
                raise ConfigError(f"{path}: unknown key {key!r}", _near(key))
            found[key] = value
    return found


def _near(name: str, names: Sequence[str] = (*BY_KEY, *SECTIONS), prefix: str = "") -> str:
    import difflib

    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {prefix + near[0]!r}? " if near else "`vmpin config` lists every key"
