"""Values of annotations, vmpin's and peers' alike: which counts for a container, their checks, and the wish that they
make."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.features.allocator.grants.cpu_request import CpuWish
from vmpin.named_tuple import NamedTuple

#: Characters of a value: enough for a list of many NUMA nodes.
_LONGEST = 256
#: Characters of it in a message.
_SHOWN = 120
GROUP_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


class AnnotationError(ValueError):
    """A value that cannot be used. The message names the key and quotes the value."""

    def __init__(self, key: str, value: str, why: str) -> None:
        super().__init__(f"{shown(key)}={shown(value)}: {why}")
        self.key = key
        self.value = value


class AnnotatedWish(NamedTuple):
    """The wish of a container's annotations. `by`: whose key gave the policy, "vmpin" or a peer; "" without one.
    `left_alone`: no cpuset at all, as by cpu.preserve of nri-plugins. `notes`: ignored values of peers' keys, for the
    log."""

    wish: CpuWish = CpuWish()
    by: str = ""
    left_alone: bool = False
    notes: tuple[str, ...] = ()
    second: CpuWish | None = None  #: It counts where `wish` cannot be had: a peer's key only prefers that.
    peer_align: bool = False  #: The wish's alignment is a peer's.


def shown(text: str) -> str:
    """Return text of a pod's author for a message: escaped where it is not printable, and cut where it is long."""
    escaped = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:_SHOWN + 1])
    return escaped if len(escaped) <= _SHOWN else f"{escaped[:_SHOWN]}…"


def checked_text(key: str, value: str) -> str:
    """The value. :raises AnnotationError: where it is too long for any key, or is not printable."""
    if len(value) > _LONGEST:
        raise AnnotationError(key, value, f"it has {len(value)} characters, more than {_LONGEST}")
    if not value.isprintable():
        raise AnnotationError(key, value, "it has characters that cannot be printed")
    return value


def effective(annotations: Mapping[str, str], key: str, container: str) -> Iterator[tuple[str, str]]:
    """The annotation that counts for the container, with its whole key; none where none does."""
    if (annotation := scoped(annotations, key, container)) is not None:
        yield annotation[1], annotation[2].strip(" \t\r\n")


def scoped(annotations: Mapping[str, str], key: str, container: str) -> tuple[int, str, str] | None:
    """The annotation that counts for the container, as it stands: its scope (0: this container alone, 1 and 2: all of
    the pod's), its whole key and its value; None where there is none."""
    for scope, whole in enumerate((f"{key}/container.{container}", f"{key}/pod", key)):
        if whole in annotations:
            return scope, whole, annotations[whole]
    return None


def nodes_near(near: str, key: str) -> CpuSet:
    """The numbers of the NUMA nodes in "nodes:LIST". :raises AnnotationError: for an invalid or empty list."""
    try:
        nodes = CpuSet.parse(near.removeprefix("nodes:"))
    except CpuSetError as err:
        raise AnnotationError(key, near, err.why) from None
    if not nodes:
        raise AnnotationError(key, near, "nodes: has a list of NUMA nodes, as nodes:0,1")
    return nodes


def group_name(key: str, name: str, value: str) -> str:
    """The name of a group, from a value. :raises AnnotationError: for a name that a group cannot have."""
    if not GROUP_NAME.fullmatch(name):
        raise AnnotationError(key, value, "the name of a group has 1 to 63 lower-case letters, digits, '-', '_', '.'")
    return name
