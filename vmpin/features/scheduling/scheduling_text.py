"""The classes of a sandbox's vCPUs as sentences, from its entry in a status document. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.terminal import pod_name, short_id


def sentences(sandbox: Mapping[str, Any]) -> Iterator[str]:
    """Sentences without a full stop; none for a sandbox whose vCPUs stay as they are."""
    entry = sandbox.get("scheduling")
    if not entry:
        return
    if entry["ignored"]:
        yield entry["ignored"]
    by = "its annotation" if entry["annotated"] else "scheduling.vcpu_class"
    groups: dict[str, list[int]] = {}
    for vcpu in entry["vcpus"]:
        if not vcpu["ok"] and vcpu["class"] == entry["class"]:
            text = f"{entry['class']}: {vcpu['why']}"
        elif vcpu["why"]:
            text = f"not {entry['class']}: {vcpu['why']}" if vcpu["class"] in (None, entry["class"]) else (
                f"{vcpu['class']}, not {entry['class']}: {vcpu['why']}")
        else:
            text = f"{entry['class']} ({by})" if vcpu["ok"] else f"{vcpu['class']}, not {entry['class']}"
        groups.setdefault(text, []).append(vcpu["vcpu"])
    for text, vcpus in groups.items():
        one = len(vcpus) == 1
        yield f"the class of vCPU{'' if one else 's'} {CpuSet(vcpus)} is {text}"


def misplaced(sandboxes: Iterable[Mapping[str, Any]]) -> list[dict[str, object]]:
    """The vCPUs that have another class than they should have."""
    return [{"sandbox": sandbox["id"], "vcpu": vcpu["vcpu"],
             "wanted": entry["class"] if vcpu["class"] != entry["class"] else "its former class",
             "actual": vcpu["class"] or "unknown", "why": vcpu["why"]}
            for sandbox in sandboxes if (entry := sandbox.get("scheduling")) for vcpu in entry["vcpus"]
            if not vcpu["ok"]]


def compared_lines(sandboxes: Sequence[Mapping[str, Any]], wrong: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of `vmpin verify`. :param wrong: of `misplaced`."""
    names = {sandbox["id"]: pod_name(sandbox.get("pod"), short_id(sandbox["id"])) for sandbox in sandboxes}
    return [f"vCPU {entry['vcpu']} of {names[entry['sandbox']]} has the class {entry['actual']}, and not "
            f"{entry['wanted']}{': ' * bool(entry['why'])}{entry['why']}" for entry in wrong] or [
        "each vCPU that is alone on an exclusive CPU has its scheduling class"]
