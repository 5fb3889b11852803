"""The annotations of a pod that ask for CPUs of a container: vmpin's own six keys, and those of peers beside them.

Each key counts in NRI's effective form: KEY/container.NAME for one container, KEY/pod and KEY for all of the pod, the
first that exists. They are text of the pod's author: every value is checked, and an error names the key and the value.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from vmpin.bounded import parse_whole
from vmpin.features.allocator.grants.allocation_options import HonouredKeys
from vmpin.features.allocator.grants.cpu_request import WISH_KEYS, Alignment, CpuKind, CpuPolicy, CpuWish, SmtUse
from vmpin.features.allocator.texts.annotation_values import (
    AnnotatedWish,
    AnnotationError,
    checked_text,
    effective,
    group_name,
    nodes_near,
    scoped,
)
from vmpin.features.allocator.texts.peer_annotations import EFFECTIVE_KEYS, PEERS, POD_KEYS

DOMAIN = "vmpin.io"
#: A PCI address with its domain, or a name that the kernel allows for a network device (dev_valid_name).
_DEVICE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|(?!\.{1,2}$)[^\s/:]{1,15}")
_MOST_SPARE = 512
_DIGEST_BYTES = 12

_Choice = TypeVar("_Choice", bound=enum.StrEnum)


def annotated_wish(annotations: Mapping[str, str], container: str, honour: frozenset[HonouredKeys]) -> AnnotatedWish:
    """Return what a pod's annotations ask for its container. vmpin's keys come before those of peers.
    :raises AnnotationError: for an invalid value of vmpin's keys, and a balloon that no group can be named as."""
    annotated = AnnotatedWish()
    for name, read in PEERS.items():
        if name in honour and (peer := read(annotations, container)) is not None:
            annotated = peer._replace(by=name)
            break
    own = {name: (key, value) for name, whole in _OWN.items()
           for key, value in effective(annotations, whole, container)}
    for short, (key, value) in own.items():
        annotated = annotated._replace(wish=_with(annotated.wish, short, key, value),
                                       second=annotated.second and _with(annotated.second, short, key, value))
    annotated = annotated._replace(peer_align=annotated.wish.align is not None and "align" not in own)
    return annotated._replace(by="vmpin", left_alone=False, second=None) if "policy" in own else annotated


def with_changes(wish: CpuWish, changes: Mapping[str, str]) -> CpuWish:
    """The wish with other values, by the keys' short names or whole names: policy, cpu-policy, cpu-policy.vmpin.io.
    :raises AnnotationError: for a name or a value that cannot be used."""
    for key in sorted(changes):
        name = key.removesuffix(f".{DOMAIN}").removeprefix("cpu-")
        if name not in _READERS:
            raise AnnotationError(key, changes[key], f"there is no such key; there are {', '.join(_READERS)}")
        wish = _with(wish, name, key, changes[key])
    return wish


def _with(wish: CpuWish, name: str, key: str, value: str) -> CpuWish:
    return _READERS[name](wish, key, checked_text(key, value))


def _choice(kind: type[_Choice], key: str, value: str, mark: str = "") -> _Choice:
    try:
        return kind(value.removesuffix(mark))
    except ValueError:
        raise AnnotationError(key, value, f"it is none of {', '.join(kind)}") from None


def _policy(wish: CpuWish, key: str, value: str) -> CpuWish:
    name, colon, group = value.partition(":")
    if name == CpuPolicy.GROUP:
        group_name(key, group, value)
    elif colon or name not in frozenset(CpuPolicy):
        names = ", ".join(policy for policy in CpuPolicy if policy is not CpuPolicy.GROUP)
        raise AnnotationError(key, value, f"it is none of {names}, group:NAME")
    return wish._replace(policy=CpuPolicy(name), group=group)


def _align(wish: CpuWish, key: str, value: str) -> CpuWish:
    return wish._replace(align=_choice(Alignment, key, value, "!"), align_required=value.endswith("!"))


def _smt(wish: CpuWish, key: str, value: str) -> CpuWish:
    return wish._replace(smt=_choice(SmtUse, key, value))


def _kind(wish: CpuWish, key: str, value: str) -> CpuWish:
    return wish._replace(kind=_choice(CpuKind, key, value))


def _near(wish: CpuWish, key: str, value: str) -> CpuWish:
    if value.startswith("nodes:"):
        nodes_near(value, key)
    elif not _DEVICE.fullmatch(value):
        raise AnnotationError(key, value, "it is neither devices, a PCI address (0000:3b:00.0), a network device nor "
                                          "nodes:LIST")
    return wish._replace(near=value)


def _spare(wish: CpuWish, key: str, value: str) -> CpuWish:
    number = parse_whole(value, _MOST_SPARE)
    if value not in ("match", "own") and number is None:
        raise AnnotationError(key, value, f"it is neither match, own nor a number of CPUs up to {_MOST_SPARE}")
    return wish._replace(spare=value if number is None else str(number))


_READERS: Mapping[str, Callable[[CpuWish, str, str], CpuWish]] = dict(zip(
    WISH_KEYS, (_policy, _align, _smt, _kind, _near, _spare), strict=True))
#: The whole keys, by their short names.
_OWN = {name: f"cpu-{name}.{DOMAIN}" for name in WISH_KEYS}


def asks(key: str) -> bool:
    """True for a key that may ask for CPUs: vmpin's own, and those of peers, honoured or not."""
    return key in POD_KEYS or key.partition("/")[0] in (*_OWN.values(), *EFFECTIVE_KEYS)


def asking_digest(annotations: Mapping[str, str], container: str) -> str:
    """A digest of all that a pod's annotations ask for one of its containers, "" where they ask for nothing. Other
    annotations, and those of other containers, do not count. Its length does not depend on theirs."""
    counting: dict[str, object] = {key: value for key in _OWN.values()
                                   for _, value in effective(annotations, key, container)}
    # A peer may rank keys by their scope (nri-plugins).
    counting |= {key: (value[0], value[2]) for key in EFFECTIVE_KEYS if (value := scoped(annotations, key, container))}
    counting |= {key: annotations[key] for key in POD_KEYS if key in annotations}
    if not counting:
        return ""
    import hashlib  # it loads OpenSSL: 4 MB

    return hashlib.blake2b(json.dumps(counting, sort_keys=True).encode(), digest_size=_DIGEST_BYTES).hexdigest()
