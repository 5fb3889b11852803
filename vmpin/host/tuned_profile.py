"""Reads the active profile of tuned, as tuned merges it from its files: which masks its scheduler plugin sets. Read
only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from vmpin.domain.facts import FoundSetting, Tuned
from vmpin.domain.foreign_pattern import MAX_TEXT, search
from vmpin.errors import SourceError
from vmpin.host.files import Files
from vmpin.host.procfs import read_file
from vmpin.named_tuple import NamedTuple

#: The directories of tuned's profiles by its default and the older one, the strongest first.
_PROFILES = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
#: Options of tuned's scheduler plugin that concern masks, besides `group.NAME`.
_MASKS = frozenset(("isolated_cores", "ps_blacklist", "cgroup_ps_blacklist", "ps_whitelist", "runtime"))
#: A variable of tuned; and one set in a file that [variables] includes.
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_ASSIGNMENT = re.compile(r"^[ \t]*(\w+)[ \t]*=([^#\n]*)", re.MULTILINE)
#: A function of tuned without another one in its arguments, which colons separate.
_FUNCTION = re.compile(r"(?<!\\)\$\{f:(\w+)((?::(?:[^{}\\]|\\.)*)?)\}", re.DOTALL)
#: The most functions within functions, functions beside each other, characters that they or variables may become, and
#: sections of all profiles.
_DEEPEST, _FUNCTIONS, _LONGEST, _SECTIONS = 6, 8, 8192, 200
#: The most bytes of a profile. Blanks beyond _LONG_BLANK take time by their square, here and in configparser.
_MAX_PROFILE, _LONG_BLANK = 1 << 16, re.compile(r"[^\S\n]{64,}")
#: Keys of a section of a tuned profile that are not options of its plugin; and the values that mean true.
_OF_THE_UNIT = frozenset(("type", "enabled", "replace", "drop", "prepend"))
_YES = frozenset(("True", "true", "1"))
#: The section into which all sections of the type are merged, under a name that no section can have.
_VARIABLES = "variables", ""


class _Unit(NamedTuple):
    """A section of a tuned profile: an instance of a plugin."""

    type: str
    enabled: bool
    options: Mapping[str, FoundSetting]


def tuned_profile(files: Files, named: str = "") -> Tuned:
    """Read tuned's active profile, with the options of the scheduler plugin merged from it and the profiles that it
    includes, as tuned merges them. :param named: the profile on its command line, "" for none."""
    text = named or _text(files, "/etc/tuned/active_profile")
    # tuned/daemon: daemon.py, _load_profiles
    active = [*(text or "").split(), *(_text(files, "/etc/tuned/post_loaded_profile") or "").split()[:1]]
    profile, units = Tuned(" ".join(active), off=text is not None and not active), dict[str, _Unit]()
    places = _profile_places(files)
    for name in active:
        profile = _with_profile(files, places, name, profile, units)
    variables = _variables(files, units.pop(_VARIABLES[1], _Unit("", True, {})))
    return replace(profile, scheduler={
        key: replace(setting, value=_expanded(str(setting.value), variables))
        for unit in units.values()
        if unit.type == "scheduler" and unit.enabled and _is_for_this_machine(unit, variables)
        for key, setting in unit.options.items() if key in _MASKS or key.startswith("group.")})


def _text(files: Files, path: str) -> str | None:
    """The text of a file; None without one, and for one that cannot be read or is too large."""
    try:
        raw = files.read(path, _MAX_PROFILE)
        return None if raw is None else _LONG_BLANK.sub(" ", raw.decode())
    except (SourceError, UnicodeDecodeError):
        return None


def _profile_places(files: Files) -> Sequence[str]:
    """The directories of profiles, the strongest first. `profile_dirs` lists them the other way round."""
    main = _ASSIGNMENT.findall(_text(files, "/etc/tuned/tuned-main.conf") or "")
    listed = [value for name, value in main if name == "profile_dirs"]
    return [place.strip().rstrip("/") for place in re.split("[,;]", listed[-1])][::-1] if listed else _PROFILES


def _variables(files: Files, unit: _Unit) -> dict[str, str]:
    """The variables of [variables] and of the file that it includes, in order: a value may have earlier variables
    (tuned/profiles: variables.py)."""
    variables: dict[str, str] = {}
    for key, setting in unit.options.items():
        value = _expanded(str(setting.value), variables)
        if key != "include":
            variables[key] = value
            continue
        for name, text in _ASSIGNMENT.findall(_text(files, value) or ""):
            variables[name] = _expanded(text.strip().strip("\"'"), variables)
    return variables


def _expanded(value: str, variables: Mapping[str, str]) -> str:
    """Replace variables; undefined ones, and functions (`${f:NAME:…}`), are kept. Cut to _LONGEST, because each
    variable may have the one before it twice."""
    expanded = ""
    for number, part in enumerate(_VARIABLE.split(value)):
        expanded = f"{expanded}{variables.get(part, f'${{{part}}}') if number % 2 else part}"[:_LONGEST]
    return expanded


def _with_functions(files: Files, text: str) -> str:
    """Evaluate the functions in a text, the innermost first (tuned/profiles/functions). Those that are not known here
    are kept, and so are those nested deeper, or with longer texts, than any profile has: a file may contain itself."""
    for _ in range(_DEEPEST):
        text = text[:_LONGEST]
        before, text = text, _FUNCTION.sub(lambda match: _function(files, match), text, count=_FUNCTIONS)
        if text == before or len(text) > _LONGEST:
            break
    return text[:_LONGEST]


def _function(files: Files, match: re.Match[str]) -> str:
    """The value of a function that may choose an included profile, in OpenShift's profiles and those for PTP."""
    arguments = [part.replace("\\:", ":") for part in re.split(r"(?<!\\):", match[2])[1:]]
    value: str | None = None
    if match[1] == "exec" and arguments == ["uname", "-r"]:
        value = os.uname().release
    elif match[1] == "exec" and arguments[:1] == ["cat"] and len(arguments) == 2:
        value = text[:_LONGEST] if (text := _text(files, arguments[1])) is not None else None
    elif match[1] == "virt_check" and len(arguments) == 2:
        value = arguments[0 if re.search(r"^flags.* hypervisor\b", _cpuinfo(), re.MULTILINE) else 1]
    elif match[1] == "regex_search_ternary" and len(arguments) == 4:
        matches = search(arguments[1], arguments[0])
        value = None if matches is None else arguments[2 if matches else 3]
    elif match[1] in ("cpuinfo_check", "lscpu_check"):
        machine = _cpuinfo() if match[1] == "cpuinfo_check" else _lscpu()
        pairs = zip(arguments[::2], arguments[1::2], strict=False)
        value = arguments[-1] if len(arguments) % 2 else ""
        for pattern, text in pairs:
            if (matches := search(pattern, machine)) is not False:
                value = None if matches is None else text
                break
    return match[0] if value is None else value


def _cpuinfo() -> str:
    return (read_file("/proc/cpuinfo", MAX_TEXT) or b"").decode("utf-8", "replace")


def _lscpu() -> str:
    """The lines of `lscpu` by which tuned's profiles know a machine."""
    vendor = re.search(r"^vendor_id\s*: *(.*)$", _cpuinfo(), re.MULTILINE)
    return f"Architecture: {os.uname().machine}\nVendor ID: {vendor[1] if vendor else 'ARM'}\n"


def _is_for_this_machine(unit: _Unit, variables: Mapping[str, str]) -> bool:
    """Whether the conditions of a section hold, or are not known (tuned/units: manager.py)."""
    return not any(search(_expanded(str(unit.options[key].value), variables), text) is False
                   for key, text in (("uname_regex", " ".join(os.uname())), ("cpuinfo_regex", _cpuinfo()))
                   if key in unit.options)


def _with_profile(files: Files, places: Sequence[str], name: str, merged: Tuned, units: dict[str, _Unit]) -> Tuned:
    """Merge into `units` the sections of a profile's included profiles, then its own. No file is read twice, so a
    profile may include the profile of the same name in a later directory (tuned/profiles: loader.py, locator.py)."""
    optional, name = name.startswith("-"), name.removeprefix("-")
    if not name:
        return merged
    if "/" in name or "${f:" in name or len(merged.files) > 30:
        return replace(merged, lost=(*merged.lost, name))
    paths = [path for place in places if files.exists(path := f"{place}/{name}/tuned.conf")]
    path = next((path for path in paths if path not in merged.files), "")
    if paths and not path:
        return merged
    sections = _sections(files, path) if path else None
    if sections is None:
        return merged if optional else replace(merged, lost=(*merged.lost, name))
    merged = replace(merged, files=(*merged.files, path))
    include = _with_functions(files, sections.get("main", {}).get("include") or "").strip()
    for included in re.split("[,;]", include):
        merged = _with_profile(files, places, included.strip(), merged, units)
    for section, options in islice(sections.items(), max(0, _SECTIONS - len(units))):
        _merge_unit(units, section, options, path)
    return merged


def _merge_unit(units: dict[str, _Unit], name: str, options: Mapping[str, str], path: str) -> None:
    """Merge a section over an earlier section of the same name. `type` and `enabled` come from the later section
    (defaults: its name, and true); its other options override. `replace` drops all earlier options, `drop` the named
    ones (no variables); `prepend` puts new variables before the earlier ones (tuned/profiles: unit.py, merger.py)."""
    kind = options.get("type", name)
    name = _VARIABLES[1] if kind == _VARIABLES[0] else name
    earlier = units.get(name)
    kept = {} if earlier is None or options.get("replace") in _YES else dict(earlier.options)
    for dropped in () if name == _VARIABLES[1] else re.split("[,;]", options.get("drop", "")):
        kept.pop(dropped.strip(), None)
    own = {key: FoundSetting(value, path) for key, value in options.items() if key not in _OF_THE_UNIT}
    first = {key: value for key, value in own.items() if key not in kept} if options.get("prepend") in _YES else {}
    units[name] = _Unit(kind, options.get("enabled", "1") in _YES, {**first, **kept, **own})


def _sections(files: Files, path: str) -> Mapping[str, Mapping[str, str]] | None:
    import configparser  # 4 ms, for the doctor and the cause of a drift

    parser = configparser.RawConfigParser(delimiters=("=",), inline_comment_prefixes=("#",), strict=False,
                                          allow_no_value=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    text = _text(files, path)
    try:
        parser.read_string(text or "", path)
    except configparser.Error:
        return None
    return None if text is None else {
        section: {key: value or "" for key, value in parser.items(section)} for section in parser.sections()}
