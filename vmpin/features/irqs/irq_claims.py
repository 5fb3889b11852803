"""nri-plugins' annotation for interrupts, `irq-affinity.resource-policy.nri.io`: a container claims interrupts, which
then go on its exclusive CPUs.

Pure, but for a log line. Keys, values and matching are those of its code
(cmd/plugins/topology-aware/policy/irq-affinity.go, pkg/irq, and path.Match of Go). A pod's author writes it, so a
claim moves an interrupt only onto CPUs of his own container, on the device's NUMA node, from no pod that has it
already, and no interrupt of a VM's passed-through device. `mask` is what irqs.policy: away does for every exclusive
CPU; with `mode: claim-first` it also ends claims of the same interrupts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from vmpin.config.yaml_file import parse
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import SandboxId
from vmpin.errors import ConfigError
from vmpin.features.irqs.irq_plan import Irq, IrqRoom
from vmpin.named_tuple import NamedTuple

logger = logging.getLogger(__name__)

KEY = "irq-affinity.resource-policy.nri.io"
PASSED = "it is of a VM's passed-through device"
TAKEN = "another pod has it"
#: Characters of an annotation and of a pattern, and patterns of an annotation, at most: matching takes the product.
_LONGEST, _LONGEST_PATTERN, _MOST = 4096, 128, 32
#: Brackets of an annotation at most, those of patterns included: PyYAML takes a second for 2,000 in each other, and
#: for ten lines of aliases.
_BRACKETS = 3 * _MOST
_CHAR = r"(?:\\.|[^]\\-])"
_TOKEN = re.compile(r"\\(?P<escaped>.)|(?P<star>\*+)|(?P<any>\?)|(?P<plain>[^\[\\])"
                    rf"|\[(?P<negated>\^?)(?P<range>(?:{_CHAR}(?:-{_CHAR})?)+)\]", re.DOTALL)


class Patterns(NamedTuple):
    """An annotation: numbers and descriptions of interrupts to take, and to leave out of these."""

    claim: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def take(self, number: int, description: str) -> bool:
        """Whether they take an interrupt."""
        return _match(self.claim, number, description) and not _match(self.but, number, description)


class IrqClaim(NamedTuple):
    """The claim of a container that owns `cpus`, by its annotation."""

    sandbox: SandboxId
    cpus: CpuSet
    annotation: str


#: By the number of an interrupt, the CPUs of the pods that claim it.
ClaimsByIrq = Mapping[int, Mapping[SandboxId, CpuSet]]


class ClaimedIrq(NamedTuple):
    """An interrupt that a pod claims: the CPUs that it gets, or none and `why`."""

    irq: Irq
    sandbox: SandboxId
    cpus: CpuSet
    why: str = ""


def annotation_of(annotations: Mapping[str, str], container: str) -> str:
    """The annotation that counts for a container, by its name; "" for none."""
    keys = f"{KEY}/container.{container}", f"{KEY}/pod", KEY
    return next((annotations[key] for key in keys if key in annotations), "")


@lru_cache(maxsize=256)
def parse_claim(text: str) -> Patterns:
    """Parse an annotation. One that is invalid, or longer than any in use, claims nothing: it is logged."""
    try:
        if len(text) > _LONGEST or "&" in text or text.count("[") + text.count("{") > _BRACKETS:
            raise ValueError("it is longer than any in use, or has aliases or too many brackets")
        value = parse(Path(KEY), text.encode())
        if not isinstance(value, dict) or (mode := value.get("mode") or "mask-first") not in (
                "mask-first", "claim-first"):
            raise ValueError("it has no claim, mask and mode")
        claim, mask = (_texts(value.get(name) or []) for name in ("claim", "mask"))
    except (ConfigError, ValueError) as err:
        logger.warning("ignored: an annotation %s: %s", KEY, err)
        return Patterns()
    return Patterns(claim, mask if mode == "claim-first" else ())


def _texts(values: object) -> tuple[str, ...]:
    """Check a list of patterns. :raises ValueError: it is none."""
    if not isinstance(values, list) or len(values) > _MOST or not all(
            isinstance(value, str | int) and len(str(value)) <= _LONGEST_PATTERN for value in values):
        raise ValueError(f"it has no list of at most {_MOST} patterns")
    return tuple(map(str, values))


def _match(patterns: Sequence[str], number: int, description: str) -> bool:
    return any(pattern == str(number) or ((expression := _expression(pattern)) is not None
                                          and expression.fullmatch(description) is not None) for pattern in patterns)


@lru_cache(maxsize=1024)
def _expression(pattern: str) -> re.Pattern[str] | None:
    """A pattern of Go's path.Match; None where it is invalid. What is between two stars is taken where it comes first,
    as there: so no pattern takes longer than its length by the text's."""
    parts, at = [""], 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return None
        at = token.end()
        if token["star"]:
            parts.append("")
        elif token["range"]:
            ends = re.findall(r"\\?(.)(?:-\\?(.))?", token["range"], re.DOTALL)
            chars = "".join(re.escape(low) + (f"-{re.escape(high)}" if high else "") for low, high in ends)
            parts[-1] += f"[{token['negated']}{chars}]"
        else:
            parts[-1] += "[^/]" if token["any"] else re.escape(token["escaped"] or token["plain"])
    first, *middle, last = parts if len(parts) > 1 else (*parts, "")
    rest = "".join(f"(?>[^/]*?{part})" for part in middle) + (f"[^/]*{last}" if len(parts) > 1 else "")
    try:
        return re.compile(first + rest, re.DOTALL)
    except re.error:
        return None


def claims_by_irq(claims: Iterable[IrqClaim], descriptions: Mapping[int, str]) -> ClaimsByIrq:
    """Find the interrupts that are claimed, in the order of the claims. Containers of a pod share theirs."""
    by_irq: dict[int, dict[SandboxId, CpuSet]] = {}
    for claim in claims:
        patterns = parse_claim(claim.annotation)
        for number, description in descriptions.items() if patterns.claim else ():
            if patterns.take(number, description):
                pods = by_irq.setdefault(number, {})
                pods[claim.sandbox] = pods.get(claim.sandbox, EMPTY) | claim.cpus
    return by_irq


def decided_claims(irqs: Iterable[Irq], by_irq: ClaimsByIrq, room: IrqRoom) -> Iterator[ClaimedIrq]:
    """Decide which pod gets an interrupt: the one on whose CPUs it is already, else the first."""
    for irq in irqs:
        if not irq.name:
            continue
        near = room.online if irq.node is None else room.nodes.get(irq.node) or room.online
        usable = {sandbox: cpus & near for sandbox, cpus in by_irq.get(irq.number, {}).items()}
        first = next((sandbox for sandbox, cpus in usable.items() if irq.mask <= cpus),
                     next((sandbox for sandbox, cpus in usable.items() if cpus), None))
        for sandbox, cpus in usable.items():
            why = (PASSED if irq.device else f"none of its CPUs is on NUMA node {irq.node}" if not cpus else
                   "" if sandbox == first else TAKEN)
            yield ClaimedIrq(irq, sandbox, EMPTY if why else cpus, why)
