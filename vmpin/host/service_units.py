"""The command lines of services in their systemd units, for programs that replace theirs by a title."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from vmpin.errors import SourceError
from vmpin.host.files import Files

#: systemd's directories of units, the strongest first (systemd.unit(5)).
_PLACES = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
           "/lib/systemd/system")
_EXEC_START = re.compile(r"^[ \t]*ExecStart[ \t]*=[ \t]*(.*)$", re.MULTILINE)
#: Characters before the program's path that change how it is run (systemd.service(5)).
_PREFIXES = "-@:+!|"


def exec_start(files: Files, pattern: str) -> Iterator[tuple[str, list[str]]]:
    """The unit files whose names match a pattern, each with its last ExecStart=, drop-ins over it; without those that
    cannot be read or parsed. Variables and specifiers are kept as written."""
    for place in _PLACES:
        for path in files.glob(f"{place}/{pattern}"):
            try:
                texts = [files.text(file) or "" for file in (path, *files.glob(f"{path}.d/*.conf"))]
                # A backslash at the end of a line continues it.
                lines = _EXEC_START.findall(re.sub(r"\\\n", " ", "\n".join(texts)))
                words = shlex.split(next((line for line in reversed(lines) if line.strip()), ""))
            except (SourceError, ValueError):
                continue
            if words:
                yield path, [words[0].lstrip(_PREFIXES), *words[1:]]
