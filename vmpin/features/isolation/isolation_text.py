"""The isolation report as a person reads it, at 80 columns. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.terminal import human_age, number_of, pod_name, printable, short_id
from vmpin.domain.wrapping import wrapped

PARTS = {"had": "had for itself", "kernel": "the kernel had", "others": "others had",
         "unidentified": "not identified", "hypervisor": "the hypervisor had", "unseen": "not seen"}
SLO = {"kept": "kept", "missed": "missed", "undecided": "undecided: it lies between the bounds"}
TABLE = ("POD", "CPUS", "FOR ITSELF", "AT LEAST", "KERNEL", "OTHERS", "NOT SEEN")
#: That are shown of a pod: the JSON document has more.
MOST_PROGRAMS = 5
#: Of a line, in the narrowest terminal.
WIDTH = 80
_BLOCKS = "▁▂▃▄▅▆▇█"
#: The shares at which the next sign begins.
_STEPS = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


def title(pod: Mapping[str, Any]) -> str:
    return pod_name(pod["pod"], short_id(pod["sandbox"]))


def percent(share: float) -> str:
    """Rounded, and neither up to 100 nor down to 0."""
    text = f"{100 * share:.3f}"
    if text == "100.000" and share < 1:
        text = "99.999"
    return f"{'<0.001' if text == '0.000' and share > 0 else text} %"


def seconds(spent: float) -> str:
    return f"{spent:.2f} s" if spent < 100 else f"{spent:.0f} s"


def row(pod: Mapping[str, Any], objective: bool) -> list[str]:
    """Return a pod's cells, in the order of TABLE, and of SLO if there is one; "-" for shares of nothing."""
    parts, share = pod["parts"], pod["share"]
    seen = [share["had"], share["least"], parts["kernel"]["share"], parts["others"]["share"]]
    return [title(pod), pod["cpus"] or "-", *("-" if unmeasured(pod) else percent(part) for part in seen),
            percent(parts["unseen"]["share"]) if pod["cpu_seconds"] else "-", *([pod["slo"]] if objective else [])]


def unmeasured(pod: Mapping[str, Any]) -> str:
    """Why there is no share of a pod in that time; "" where there is one."""
    if pod["cpu_seconds"] > pod["parts"]["unseen"]["seconds"]:
        return ""
    return "had no exclusive CPUs" if pod["without"] and not pod["cpu_seconds"] else "has no samples"


def headline(pod: Mapping[str, Any]) -> str:
    """`demo/shop had 99.912 % of its 3 exclusive CPUs 2-4 for itself, during 24h until …`"""
    count = len(CpuSet.parse(pod["cpus"]))
    cpus = f"its {number_of(count, 'CPU', 'exclusive')} {pod['cpus']}" if count else "its former exclusive CPUs"
    ended = ", when it ended" if pod["ended"] else ""
    had = unmeasured(pod) or f"had {percent(pod['share']['had'])} of {cpus} for itself"
    return f"{title(pod)} {had}, in {human_age(pod['seconds'])} until {pod['until']}{ended}"


def worst_sentence(pod: Mapping[str, Any]) -> str:
    worst = pod["worst"]
    if worst is None:
        return "no minute had foreign time above the measurement error"
    where = "" if worst["cpu"] is None else f", most on CPU {worst['cpu']}"
    return (f"worst minute: {worst['minute']}: {percent(worst['share'])} of its CPUs' time was not its own "
            f"({seconds(worst['seconds'])}{where})")


def drift_sentence(pod: Mapping[str, Any]) -> str:
    """"" without drift."""
    drift = pod["drift"]
    if not drift or not drift["repairs"]:
        return ""
    counts = ", ".join(f"{count} by {cause}" for cause, count in drift["repairs"].items())
    why = f"; the last time: {drift['why']}" if drift["why"] else ""
    return f"drift: threads put back since the watcher found the pod: {counts}{why}"


def curve(pod: Mapping[str, Any]) -> str:
    """Draw the share that was not the pod's over the period, one sign for each part, in logarithmic steps; a dot: not
    seen; a dash: without exclusive CPUs."""
    return "".join("·-"[part["without"] > part["unseen"]] if part["share"] is None else
                   _BLOCKS[bisect_right(_STEPS, 1 - part["share"])] for part in pod["bins"])


def lines(pod: Mapping[str, Any], slo: float | None, width: int = WIDTH) -> Iterator[str]:
    """The report of one pod."""
    yield from _wrapped(headline(pod), width, "")
    if not unmeasured(pod):
        yield f"  (at least {percent(pod['share']['least'])}, at most {percent(pod['share']['most'])})"
    yield ""
    for name, text in PARTS.items() if pod["cpu_seconds"] else ():
        part = pod["parts"][name]
        yield f"  {text:<20}{percent(part['share']):>11}  {seconds(part['seconds']):>10}"
    if pod["without"]:
        yield f"  {'no exclusive CPUs':<20}{'':>11}  {seconds(pod['without']):>10}"
    by_cpu = [cpu for cpu in pod["foreign_by_cpu"] if cpu["seconds"]]
    if by_cpu:
        yield from _wrapped("foreign by CPU: " + ", ".join(
            f"{'former' if cpu['cpu'] is None else cpu['cpu']}: {seconds(cpu['seconds'])}" for cpu in by_cpu),
            width, "  ")
    yield f"  over time: {curve(pod)}"
    yield "    (not its own: ▁ below 0.01 %, ▃ 0.1 %, ▅ 1 %, ▇ 10 %, █ 30 %; · not seen" + (
        ";" if pod["without"] else ")")
    if pod["without"]:
        yield "    - without exclusive CPUs)"
    yield ""
    yield from _worst(pod, width, "  ")
    yield from _programs(pod["foreign_by_program"], width)
    if drift := drift_sentence(pod):
        yield from _wrapped(drift, width, "  ")
    yield "  what sampling could not see:"
    for text in pod["limits"]:
        yield from _wrapped(f"- {text}", width, "    ")
    if slo is not None:
        yield f"  SLO {slo:g} %: {SLO[pod['slo']]}"


def worst_lines(pod: Mapping[str, Any], width: int) -> Iterator[str]:
    """The worst minute of one of several pods."""
    yield from _wrapped(title(pod), width, "")
    yield from _worst(pod, width, "  ")


def _worst(pod: Mapping[str, Any], width: int, indent: str) -> Iterator[str]:
    yield from _wrapped(worst_sentence(pod), width, indent)
    if (worst := pod["worst"]) is not None:
        cause = worst["cause"]
        by = "not identified" if cause is None else f"{cause['title']}, {seconds(cause['seconds'])}"
        yield from _wrapped(f"cause: {by}", width, f"{indent}  ")
        yield from _wrapped(f"what to do: {worst['advice']}", width, f"{indent}  ")


def _programs(programs: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    if len(programs) > 1:
        yield "  foreign programs in the whole period:"
        for program in programs[:MOST_PROGRAMS]:
            yield from _wrapped(f"{seconds(program['seconds'])}  {program['title']}", width, "    ")


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return wrapped(printable(text), width, indent, f"{indent}  ")
