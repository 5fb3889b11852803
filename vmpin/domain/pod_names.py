"""The names of pods and containers for their ids, from a status document, and sentences with names in place of ids.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from vmpin.domain.terminal import number_of, pod_name, short_id

#: Ids of containerd and CRI-O; and uids of pods, by which CPUs belong to a pod that the kubelet alone reports. That of
#: a static pod is a hash of its file.
_ID = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
#: `NAME (ID)`, as sentences have containers. A name is tried from its beginning alone: the time grows with the text.
_NAME_AND_ID = re.compile(r"(?<!\S)(\S+) \(([0-9a-f]{64})\)")


def names_of(document: Mapping[str, Any]) -> dict[str, str]:
    """The names in a status document by id: `namespace/pod` by sandbox id, a container's name by its id."""
    names = {container["id"]: container["name"] for sandbox in document["sandboxes"]
             for container in sandbox.get("containers", ()) if container["name"]}
    names |= document["node"].get("names", {})
    names |= {owner["container"]: owner["name"] for owner in document["node"].get("owners", ()) if owner.get("name")}
    return names | {entry[key]: pod_name(entry.get("pod"), short_id(entry[key]))
                    for key, many in (("sandbox", document["node"].get("owners", ())), ("id", document["sandboxes"]))
                    for entry in many}


def with_names(text: str, names: Mapping[str, str]) -> str:
    """The text with each id of a runtime replaced by the name, or by the id's first digits if the name is unknown."""
    text = _NAME_AND_ID.sub(lambda match: match[1] if names.get(match[2]) == match[1] else match[0], text)
    return _ID.sub(lambda id: names.get(id[0], short_id(id[0])), text)


def title_of(sandbox: str, names: Mapping[str, str]) -> str:
    """A sandbox's title: its pod, or `sandbox ID` with the id's first digits if the pod is unknown.
    :param names: of `names_of`."""
    short = short_id(sandbox)
    name = names.get(sandbox, short)
    return f"sandbox {short}" if name == short else name


def by_sandbox(lines: Iterable[tuple[str, str]], names: Mapping[str, str]) -> list[str]:
    """Sentences of sandboxes as lines below the title of each, indented; sandboxes in the order of their titles.
    :param lines: (sandbox id, sentence, which may begin with `sandbox ID: `). :param names: of `names_of`."""
    groups: dict[str, list[str]] = {}
    for sandbox, text in lines:
        groups.setdefault(sandbox, []).append(with_names(text.removeprefix(f"sandbox {sandbox}: "), names))
    titles = {sandbox: title_of(sandbox, names) for sandbox in groups}
    return [line for sandbox in sorted(groups, key=lambda sandbox: (titles[sandbox], sandbox))
            for line in (f"{titles[sandbox]}:", *(f"  {text}" for text in groups[sandbox]))]


def threads_of(operations: Collection[Mapping[str, Any]]) -> str:
    """The number of threads of operations, one each, and of their sandboxes."""
    sandboxes = len({operation["sandbox"] for operation in operations})
    return f"{number_of(len(operations), 'thread')} of {number_of(sandboxes, 'sandbox')}"
