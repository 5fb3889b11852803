"""CpuSet: the one value type for CPUs (and, in the guest, for vCPUs).

Parses and writes the kernel's list format (Documentation/admin-guide/kernel-parameters.rst, "cpu lists";
lib/bitmap.c:bitmap_parselist) and does set algebra. Shared with the guest agent, so it is standard library only and
runs on Python 3.9.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Dict, Iterable, Iterator, List

#: The largest CPU number any Linux kernel can be built for is NR_CPUS - 1 = 8191 (x86 MAXSMP). The limit
#: keeps a hostile list such as "0-99999999999" from costing memory.
MAX_CPU = 8191

#: A list longer than this, or with more CPUs, ranges and strides, names no real machine: 8192 CPUs, every second one,
#: are 4096 regions and 20 kB.
MAX_TEXT, MAX_REGIONS = 65536, 4096

_REGION = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6})(?::([0-9]{1,6})/([0-9]{1,6}))?)?")
#: Spelt out: str.split() and \s would also part a list at Unicode's spaces.
_SEPARATORS = re.compile(r"[, \t\n\v\f\r]+")


class CpuSetError(ValueError):
    """An invalid CPU list. `text` is the whole input; the message quotes it, shortened."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"invalid CPU list {_short(text)}: {why}")
        self.text = text
        self.why = why


def _short(text: str) -> str:
    """`text` quoted for a message, cut where it is long: a hostile list must not fill the log."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _stride(length: int, used: int, group: int) -> int:
    """`length` bits, of which the first `used` of every `group` are set; in time linear in `length`."""
    pattern = (1 << min(used, length)) - 1
    while group < length:
        pattern |= pattern << group
        group *= 2
    return pattern & ((1 << length) - 1)


def _regions(text: str, most: int) -> List[str]:
    """The regions of a list, unparsed. :raises CpuSetError: if it is too long, or has more than `most` regions."""
    if len(text) > MAX_TEXT:
        raise CpuSetError(text, f"it is {len(text)} characters long")
    regions = [region for region in _SEPARATORS.split(text) if region]
    if len(regions) > most:
        raise CpuSetError(text, f"it has {len(regions)} regions, at most {most} are read")
    return regions


class CpuSet:
    """An immutable set of CPU numbers (0..MAX_CPU), ordered ascending when iterated.

    >>> CpuSet.parse("0-3,8") & CpuSet.parse("2-9")
    CpuSet('2-3,8')
    """

    __slots__ = ("_bits", "_frozen", "_text")
    _bits: int
    # Computed at the first use and kept: passes compare and print the same few sets thousands of times.
    _frozen: "frozenset[int]"
    _text: str

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        bits = 0
        for cpu in cpus:
            if not 0 <= cpu <= MAX_CPU:
                raise CpuSetError(str(cpu), f"CPU {cpu} is not between 0 and {MAX_CPU}")
            bits |= 1 << cpu
        object.__setattr__(self, "_bits", bits)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a CpuSet does not change")

    def __reduce__(self) -> "tuple[object, ...]":
        return (CpuSet.from_bits, (self._bits,))

    @classmethod
    def from_bits(cls, bits: int) -> CpuSet:
        """The set whose CPU n is bit n of `bits`. :raises CpuSetError: for bits below 0 or beyond MAX_CPU."""
        if bits < 0 or bits.bit_length() > MAX_CPU + 1:
            raise CpuSetError(hex(bits), f"the mask reaches beyond CPU {MAX_CPU}")
        cpus = cls.__new__(cls)
        object.__setattr__(cpus, "_bits", bits)
        return cpus

    @classmethod
    def parse(cls, text: str) -> CpuSet:
        """Read the kernel's list format, as the kernel reads it.

        Regions are separated by commas or white space, runs of them counting as one; a region is `3`, `0-7`, or
        `0-7:2/4` (of every 4 CPUs the first 2). Blank text is the empty set. The kernel's `all` and `N` (the last
        CPU) are refused: it never writes them, and what they mean depends on the machine.

        :raises CpuSetError: quoting the input and the region that is wrong.
        """
        return _short_list(text) if len(text) <= _SHORT else _list(text)

    @classmethod
    def _of_regions(cls, text: str, regions: List[str], strides: bool) -> CpuSet:
        bits = 0
        for region in regions:
            match = _REGION.fullmatch(region)
            if match is None:
                raise CpuSetError(text, f"{_short(region)} is no CPU, range or stride")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise CpuSetError(text, f"range {region!r} runs backwards")
            if last > MAX_CPU:
                raise CpuSetError(text, f"CPU {last} is beyond {MAX_CPU}")
            if match[3] is None:
                bits |= (1 << (last + 1)) - (1 << first)
                continue
            used, group = int(match[3]), int(match[4])
            if group == 0 or used > group:
                raise CpuSetError(text, f"stride {region!r} takes {used} of every {group}")
            if not strides:
                raise CpuSetError(text, f"{region!r} is a stride, which only people write")
            bits |= _stride(last - first + 1, used, group) << first
        return cls.from_bits(bits)

    def __str__(self) -> str:
        """The kernel's list format, shortest ranges, no strides: `0-3,8`; the empty set is ``""``."""
        try:
            return self._text
        except AttributeError:
            object.__setattr__(self, "_text", self._format())
            return self._text

    def _format(self) -> str:
        parts = []
        cpus = list(self)
        at = 0
        while at < len(cpus):
            end = at
            while end + 1 < len(cpus) and cpus[end + 1] == cpus[end] + 1:
                end += 1
            parts.append(str(cpus[at]) if end == at else f"{cpus[at]}-{cpus[end]}")
            at = end + 1
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"CpuSet({str(self)!r})"

    def __iter__(self) -> Iterator[int]:
        bits = self._bits
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low

    def __len__(self) -> int:
        return bin(self._bits).count("1")  # int.bit_count() is 3.10; the guest may have 3.9

    def __bool__(self) -> bool:
        return self._bits != 0

    def __contains__(self, cpu: int) -> bool:
        return cpu >= 0 and bool(self._bits >> cpu & 1)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, CpuSet) and self._bits == other._bits)

    def __hash__(self) -> int:
        return hash(self._bits)

    def _of(self, bits: int) -> CpuSet:
        """The set of these bits: the same object if it is unchanged, with its text, which hundreds of VMs may
        share."""
        return self if bits == self._bits else CpuSet.from_bits(bits)

    def __and__(self, other: CpuSet) -> CpuSet:
        return self._of(self._bits & other._bits)

    def __or__(self, other: CpuSet) -> CpuSet:
        return self._of(self._bits | other._bits)

    def __sub__(self, other: CpuSet) -> CpuSet:
        return self._of(self._bits & ~other._bits)

    def __xor__(self, other: CpuSet) -> CpuSet:
        return CpuSet.from_bits(self._bits ^ other._bits)

    def __le__(self, other: CpuSet) -> bool:
        """Whether every CPU of this set is in the other one."""
        return self._bits & ~other._bits == 0

    def __lt__(self, other: CpuSet) -> bool:
        return self._bits & ~other._bits == 0 and self._bits != other._bits

    def __ge__(self, other: CpuSet) -> bool:
        return other <= self

    def __gt__(self, other: CpuSet) -> bool:
        return other < self

    def isdisjoint(self, other: CpuSet) -> bool:
        return self._bits & other._bits == 0

    @property
    def bits(self) -> int:
        """CPU n as bit n."""
        return self._bits

    @property
    def first(self) -> int:
        """The lowest CPU. :raises CpuSetError: for an empty set."""
        if not self._bits:
            raise CpuSetError("", "the set is empty")
        return (self._bits & -self._bits).bit_length() - 1

    def frozen(self) -> frozenset[int]:
        """The CPUs as `os.sched_getaffinity` returns them, computed once (passes compare often)."""
        try:
            return self._frozen
        except AttributeError:
            object.__setattr__(self, "_frozen", frozenset(self))
            return self._frozen


def _list(text: str) -> CpuSet:
    return CpuSet._of_regions(text, _regions(text, MAX_REGIONS), strides=True)


#: A runtime reports the same few lists again and again. Longer ones, as a hostile text may be, are not kept.
_SHORT = 64
_short_list = lru_cache(maxsize=256)(_list)


class CpuLists:
    """Parses the CPU lists of one message or file of another program.

    Strides are refused, as no program writes them, and the different lists together have at most `regions` regions:
    this bounds the cost of an input, however many lists it has."""

    def __init__(self, regions: int = MAX_REGIONS) -> None:
        self._left = regions
        self._parsed: Dict[str, CpuSet] = {}

    def parse(self, text: str) -> CpuSet:
        """Parse a list as `CpuSet.parse` does. :raises CpuSetError: also for a stride, and for too many regions."""
        cpus = self._parsed.get(text)
        if cpus is None:
            regions = _regions(text, self._left)
            self._left -= len(regions)
            cpus = self._parsed[text] = CpuSet._of_regions(text, regions, strides=False)
        return cpus


def union(sets: Iterable[CpuSet]) -> CpuSet:
    """All CPUs of all sets."""
    bits = 0
    for cpus in sets:
        bits |= cpus.bits
    return CpuSet.from_bits(bits)


EMPTY = CpuSet()
