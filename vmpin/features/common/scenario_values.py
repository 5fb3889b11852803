"""Single values of a scenario, checked; and what comes of the part of it that a feature's keys describe. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from vmpin.bounded import whole
from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.model import valid_id
from vmpin.errors import ConfigError
from vmpin.features.common.held_cpus import HeldCpus
from vmpin.named_tuple import NamedTuple

#: KVM's own limit is 4096 vCPUs (KVM_MAX_VCPUS); no VM has more iothreads or queues than that either.
MAX_COUNT = 4096


def _line(text: str) -> str:
    """`text` on one line of at most 400 characters, without those that control a terminal."""
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= 400 else f"{shown[:300]}...{shown[-97:]}"


class ScenarioValues:
    """Checks single values; each check raises ConfigError with the place `at` which the value stands.
    :param source: the file's name, with which each error begins."""

    def __init__(self, source: str) -> None:
        self._source = source

    def wrong(self, at: str, why: str) -> ConfigError:
        return ConfigError(f"{self._source}: {_line(at)}: {_line(why)}")

    def mapping(self, value: object, at: str, keys: Sequence[str] | None) -> dict[str, object]:
        """A mapping with no keys but `keys` (None: any)."""
        if not isinstance(value, dict):
            raise self.wrong(at, f"{value!r:.80} is no mapping of keys to values")
        for key in value:
            if keys is not None and key not in keys:
                raise self.wrong(at, f"unknown key {key!r:.80} (known: {', '.join(keys)})")
        return value

    def items(self, value: object, at: str) -> list[tuple[str, object]]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(at, f"{value!r:.80} is no list")
        return [(f"{at}[{index}]", item) for index, item in enumerate(value)]

    def cpuset(self, value: object, at: str, valid: CpuSet | None = None, among: str = "the topology") -> CpuSet:
        """A CPU list, or a single CPU as a number; within `valid` when given. :param among: what `valid` is."""
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.wrong(at, f"{value!r:.80} is no CPU list")
        try:
            cpus = CpuSet.parse(str(value))
        except CpuSetError as err:
            raise self.wrong(at, str(err)) from err
        if valid is not None and not cpus <= valid:
            raise self.wrong(at, f"CPUs {cpus - valid} of {str(value)!r:.80} are not in {among} ({valid})")
        return cpus

    def count(self, value: object, at: str) -> int:
        number = whole(value, MAX_COUNT)
        if number is None:
            raise self.wrong(at, f"{value!r:.80} is no number between 0 and {MAX_COUNT}")
        return number

    def id(self, value: object, at: str) -> str:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not valid_id(text):
            raise self.wrong(at, f"{value!r:.80} is no id (letters, digits and _.+:@-)")
        return text


class PlayedPart(NamedTuple):
    """The outcome of a feature's part of a scenario."""

    members: Mapping[str, Any]  #: Of the document that `vmpin plan --scenario -o json` prints.
    lines: Sequence[str]  #: Of its text.
    refused: bool  #: Something cannot be as the scenario has it.
    held: HeldCpus | None  #: Which CPUs containers have then.


class ScenarioPart(Protocol):
    """What a feature's keys describe in a scenario."""

    def played(self) -> PlayedPart: ...
