"""Lines of a watcher's log that do not name the pod of the sandbox that they are about."""

from __future__ import annotations

import re

_LINE = re.compile(r"\d\d:\d\d:\d\d (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) +(.*)")
_ID = re.compile(r"\b(?:sandbox|container)=(\S+?):?(?= |$)")
_PROCESS = re.compile(r"\bpid=\d+\b")


def nameless(log: str, known: frozenset[str] = frozenset()) -> list[str]:
    """The lines of a text log that mention a sandbox, a container or a VM's process of a pod, by its id or pid, and do
    not end in the pod's name. :param known: ids of pods that are named; those of earlier lines that name a pod count
    as well."""
    named, lacking = set(known), []
    for match in filter(None, map(_LINE.fullmatch, log.splitlines())):
        message = match[1]
        mentioned = {word.rstrip(".:,;") for word in re.split(r"[\s=,/()'\"]+", message)} | set(
            _PROCESS.findall(message))
        if re.search(r" pod=\S+/\S+( op=\d+)?$", message):
            named |= set(_ID.findall(message)) | (set(_PROCESS.findall(message)) if " role=" in message else set())
        elif not named.isdisjoint(mentioned):
            lacking.append(match[0])
    return lacking
