"""Loading the configuration: defaults, then the file, then the environment, then flags; each value is checked once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from vmpin.config.settings import BY_KEY, SECTIONS, SETTINGS, Config, with_values
from vmpin.config.values import Setting
from vmpin.cpuset import CpuSetError
from vmpin.errors import ConfigError
from vmpin.feature import features, present

DEFAULT_FILE = Path("/etc/vmpin/vmpin.yaml")

#: Variables that set no key: VMPIN_DEBUG shows the traceback of an error of the operating system (cli/main), the
#: others are the tests' own (docs/testing.md).
_NO_KEYS = ("VMPIN_DEBUG", "VMPIN_LAB_", "VMPIN_FUZZ_", "VMPIN_SOAK_")
#: A pod has variables for each Service of its namespace: of vmpin-metrics VMPIN_METRICS_SERVICE_HOST and others.
_SERVICE = "_SERVICE_HOST"


class WatchedFile:
    """Detects that the configuration's file was written, replaced or removed; to be created before it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._identity()

    def changed(self) -> bool:
        """True once for each change."""
        before, self._seen = self._seen, self._identity()
        return self._seen != before

    def _identity(self) -> tuple[int, ...] | None:
        # After a change of a ConfigMap its file is a link to another one: the inode differs, and the time need not.
        try:
            info = self._path.stat()
        except OSError:
            return None
        return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def load(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """Put the configuration together: defaults, the file, VMPIN_ variables, then flags; the later, the stronger.
    :param file: must exist; None takes the default file if there is one. :param flags: by key, from the command line.
    :raises ConfigError: naming the source, the key and the value."""
    config = load_usable(file, environment, flags)
    for err in config.errors:
        raise err from err.__cause__
    return config


def of_watcher(config: Config, its: Mapping[str, Mapping[str, object]]) -> Config:
    """Take the running watcher's values, but for keys that flags or the environment of this command set.
    :param its: the watcher's, as `Config.data` has it."""
    values, origin = config.values, dict(config.origin)
    for key, entry in its.items():
        if key in BY_KEY and origin[key] != "flag" and not origin[key].startswith("environment "):
            with contextlib.suppress(ValueError, CpuSetError, KeyError):  # a watcher of another version
                values[key], origin[key] = BY_KEY[key].parse(entry["value"]), f"watcher: {entry['from']}"
    return with_values(values, origin)._replace(errors=config.errors, warnings=config.warnings)


def load_usable(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """Load for a command that sets no masks by the configuration: faults of the file and the environment are in
    `errors`, and a key whose value is wrong has that of the next weaker source. :raises ConfigError: for a flag."""
    given: dict[str, list[tuple[object, str]]] = {}
    faults: list[ConfigError] = []
    warnings: list[ConfigError] = []
    path = file or DEFAULT_FILE
    if file is not None or _is_there(path):
        for key, value in _read(path, faults, warnings).items():
            given.setdefault(key, []).append((value, str(path)))
    for setting, text in _from(environment, faults).items():
        given.setdefault(setting.key, []).append((text, f"environment {setting.variable}"))
    for key, text in flags.items():
        if key not in BY_KEY:
            raise ConfigError(f"--set {key}={text:.80}: unknown key {key!r:.80}", _near(key))
        given.setdefault(key, []).append((text, "flag"))
    parsed: dict[str, object] = {setting.key: setting.default for setting in SETTINGS}
    origins = dict.fromkeys(parsed, "default")
    for key, sources in given.items():
        parsed[key], origins[key] = _strongest(key, sources, faults)
    config = with_values(parsed, origins)
    faults += present(check(config) for check in present(feature.check_config for feature in features()))
    return config._replace(errors=tuple(faults), warnings=tuple(warnings))


def _strongest(key: str, sources: Sequence[tuple[object, str]], faults: list[ConfigError]) -> tuple[object, str]:
    """A key's value from the strongest source that has a valid one, else its default, with its origin.
    :param sources: values with their origins, the weakest first. :param faults: appended to for each invalid one.
    :raises ConfigError: for a flag's value."""
    for value, origin in reversed(sources):
        try:
            return BY_KEY[key].parse(value), origin
        except (ValueError, CpuSetError) as err:
            refused = ConfigError(f"{origin}: {key}: {value!r:.80}: {err}", BY_KEY[key].help)
            refused.__cause__ = err
            if origin == "flag":
                raise refused from err
            faults.append(refused)
    return BY_KEY[key].default, "default"


def _from(environment: Mapping[str, str], faults: list[ConfigError]) -> dict[Setting, str]:
    """Return what the environment sets. :param faults: appended to for a VMPIN_ variable that sets no key."""
    services = [name.removesuffix(_SERVICE) for name in environment if name.endswith(_SERVICE)]
    others = (*_NO_KEYS, *(f"{name}{part}" for name in services for part in ("_SERVICE_", "_PORT")))
    by_variable = {setting.variable: setting for setting in SETTINGS}
    texts = {}
    for name, text in environment.items():
        if not name.startswith("VMPIN_") or name.startswith(others):
            continue
        if name in by_variable:
            texts[by_variable[name]] = text
        else:
            faults.append(ConfigError(f"environment {name}: sets no key that is known", _near(
                name.removeprefix("VMPIN_"), [variable.removeprefix("VMPIN_") for variable in by_variable], "VMPIN_")))
    return texts


def _is_there(path: Path) -> bool:
    # Not Path.exists(): from Python 3.14 on a file that may not be looked at does not exist by it.
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # hidden from this user: reading it shows why
    return True


def _read(path: Path, faults: list[ConfigError], warnings: list[ConfigError]) -> dict[str, object]:
    """The keys of a file, as `section.key`.
    :param faults: appended to for an unknown key, and for a file that cannot be read: lines before the error count.
    :param warnings: appended to for an unknown section or key that is empty: the file is of a newer version."""
    from vmpin.config import yaml_file  # only when there is a file

    try:
        document = yaml_file.load(path)
    except ConfigError as err:
        if isinstance(err.__cause__, FileNotFoundError):
            raise  # the command line names another file than was meant
        faults.append(err)
        document = yaml_file.before_error(path, err)
    if document is None:
        return {}
    if not isinstance(document, dict):
        faults.append(ConfigError(f"{path}: is not a mapping of sections"))
        return {}
    values: dict[str, object] = {}
    unknown: list[tuple[str, object, object]] = []
    for section, keys in document.items():
        if section not in SECTIONS:
            unknown.append(("section", section, keys))
        elif not isinstance(keys, dict | None):
            faults.append(ConfigError(f"{path}: {section}: {keys!r:.80} is not a mapping of keys to values"))
        else:
            values |= {f"{section}.{name}": value for name, value in (keys or {}).items()}
    unknown += [("key", key, values.pop(key)) for key in values.keys() - BY_KEY.keys()]
    for kind, name, value in unknown:
        if _is_empty(value):  # it sets nothing, in the version that knows it either
            warnings.append(ConfigError(f"{path}: unknown {kind} {name!r:.80} is empty: ignored", _near(str(name))))
        else:
            faults.append(ConfigError(f"{path}: unknown {kind} {name!r:.80}", _near(str(name))))
    return values


def _is_empty(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or value == []


def _near(name: str, names: Sequence[str] = (*BY_KEY, *SECTIONS), prefix: str = "") -> str:
    import difflib

    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {prefix + near[0]!r}?" if near else "`vmpin config` lists every key"
