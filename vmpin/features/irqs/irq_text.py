"""Interrupts as sentences, from a status document. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vmpin.domain.terminal import short_id

#: What the kinds of interrupts are called, in the order of a sentence; those of devices are named one by one.
_KINDS = {"timer": "timer interrupts", "ipi": "interrupts by other CPUs", "softirq": "softirqs", "other": "others"}


def rate(count: float) -> str:
    """Interrupts in each second.

    >>> rate(309.7), rate(0.25)
    ('310/s', '0.2/s')
    """
    return f"{count:.0f}/s" if count >= 10 else f"{count:.1f}/s"


def cpu_notes(document: Mapping[str, Any]) -> dict[int, list[str]]:
    """Sentences about each exclusive CPU that took interrupts in the last interval."""
    entry = document.get("features", {}).get("irqs") or {}
    titles = {sandbox["id"]: sandbox["pod"] for sandbox in document.get("sandboxes", ())}
    return {cpu["cpu"]: list(notes_of(cpu, titles)) for cpu in entry.get("cpus", ())}


def notes_of(cpu: Mapping[str, Any], titles: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about one CPU. :param titles: the pods of VMs, by sandbox."""
    for interrupt in cpu["interrupts"]:
        yield f"CPU {cpu['cpu']} took {rate(interrupt['rate'])} of {_named(interrupt)}{_whose(interrupt, titles)}"
    if more := cpu["more"]:
        yield f"CPU {cpu['cpu']} took interrupts of {more} more devices"
    rest = [f"{rate(cpu['rates'][kind])} {text}" for kind, text in _KINDS.items() if cpu["rates"].get(kind)]
    if rest:
        yield f"CPU {cpu['cpu']} took {', '.join(rest)}"


def _named(interrupt: Mapping[str, Any]) -> str:
    number = "" if interrupt["irq"] is None else f" (IRQ {interrupt['irq']})"
    return f"{interrupt['name'] or 'an interrupt without a driver'}{number}"


def _whose(interrupt: Mapping[str, Any], titles: Mapping[str, Any]) -> str:
    if interrupt["sandbox"] is None:
        return ""
    pod = titles.get(interrupt["sandbox"])
    return f", a device of {pod['namespace']}/{pod['name']}" if pod else (
        f", a device of sandbox {short_id(interrupt['sandbox'])}")


def sentences(sandbox: Mapping[str, Any]) -> list[str]:
    """Sentences about a sandbox's entry with interrupts, without a full stop."""
    entry = sandbox["interrupts"]
    titles = {sandbox["id"]: sandbox["pod"]}
    devices: Sequence[Mapping[str, Any]] = entry["devices"]
    return [*(note for cpu in entry["cpus"] for note in notes_of(cpu, titles)),
            *(f"{_named(device)} is of its own device and may use CPUs {device['cpus']}" for device in devices),
            *(f"{_named(claim)} is claimed by an annotation: " + (
                f"it is on CPUs {claim['cpus']}" if claim["cpus"] else f"refused, {claim['why']}")
              for claim in entry["claims"])]
