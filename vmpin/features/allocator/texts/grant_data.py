"""Grants as JSON data and back: a wish, the annotation in which a container carries its grant, and the ledger.

A pod's author may write the annotation, too. So it gives no CPUs: where the ledger is lost, it shows how to read the
cpuset that the runtime lists, which no pod can write (grants.synchronizing).

The ledger is checked as a whole: data that it never makes is an error that names the place, the key and the value, and
its file is then set aside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from vmpin.bounded import load_json
from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.features.allocator.grants.cpu_request import WISH_KEYS, CpuKind, CpuPolicy, CpuWish, RefusalKind
from vmpin.features.allocator.grants.ledger import MAX_REFUSED, CpuAmount, Grant, GrantState, Ledger, RefusedRequest
from vmpin.features.allocator.texts.annotation_values import AnnotationError, shown
from vmpin.features.allocator.texts.annotations import with_changes
from vmpin.named_tuple import NamedTuple

GRANT_KEY: Final = "grant.vmpin.io"
_ANNOTATION_VERSION = 1
_LONGEST = 4096
_LISTS = ("cpus", "spare", "near", "devices")

VERSION: Final = 1
_Given = TypeVar("_Given")
_Read = TypeVar("_Read")
_SETS = ("cpus", "spare", "written", "near", "devices")
#: The other members of a grant, with the type of each.
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("container", "sandbox", "name", "namespace", "pod", "pod_uid", "group", "annotated"), str),
    **dict.fromkeys(("own_spare", "left_alone", "vm", "guaranteed"), bool),
    **dict.fromkeys(("vm_vcpus", "vm_most", "vm_part", "vm_overhead", "since_ns"), int)}
_ALWAYS = frozenset({"container", "sandbox", "policy", "state"})
_PLAIN = Grant(ContainerId(""), SandboxId(""), "", "", "", "", CpuWish(), CpuPolicy.NONE)


def wish_texts(wish: CpuWish) -> dict[str, str]:
    """Return a wish by the keys' short names, with values as annotations have them: those that are not the default."""
    texts: dict[str, str] = {}
    if wish.policy is not None:
        texts["policy"] = f"group:{wish.group}" if wish.policy is CpuPolicy.GROUP else str(wish.policy)
    if wish.align is not None:
        texts["align"] = f"{wish.align}!" if wish.align_required else str(wish.align)
    if wish.smt is not None:
        texts["smt"] = str(wish.smt)
    if wish.kind is not CpuKind.ANY:
        texts["kind"] = str(wish.kind)
    if wish.near:
        texts["near"] = wish.near
    if wish.spare != "match":
        texts["spare"] = wish.spare
    return texts


def wish_data(wish: CpuWish) -> dict[str, object]:
    """Return what of a wish is not the default."""
    return {**wish_texts(wish), **({"exclude_reserved": True} if wish.exclude_reserved else {})}


def wish_of(data: object) -> CpuWish:
    """Read a wish from its data. :raises ValueError: for what `wish_data` never makes; the message names the key and
    the value."""
    if not isinstance(data, Mapping):
        raise ValueError(f"a wish is an object, not {data!r:.80}")
    unknown = data.keys() - {*WISH_KEYS, "exclude_reserved"}
    if unknown:
        raise ValueError(f"a wish has the unknown key {min(map(str, unknown))!r:.80}")
    excluded = data.get("exclude_reserved", False)
    texts = {key: value for key, value in data.items() if key != "exclude_reserved"}
    for key, value in [*texts.items(), ("exclude_reserved", excluded)]:
        if not isinstance(value, bool if key == "exclude_reserved" else str):
            raise ValueError(f"{key}={value!r:.80} of a wish has the wrong type")
    return with_changes(CpuWish(), texts)._replace(exclude_reserved=excluded)


class AnnotatedGrant(NamedTuple):
    """A grant, as far as its annotation has it."""

    wish: CpuWish
    policy: CpuPolicy
    cpus: CpuSet
    spare: CpuSet = EMPTY
    own_spare: bool = False
    since_ns: int = 0
    left_alone: bool = False
    near: CpuSet = EMPTY
    devices: CpuSet = EMPTY


def annotation_of(grant: Grant) -> str:
    data: dict[str, object] = {"v": _ANNOTATION_VERSION, "policy": grant.policy, "since": grant.since_ns}
    data |= {key: str(cpus) for key in _LISTS if (cpus := getattr(grant, key))}
    data |= {key: True for key, value in (("own", grant.own_spare), ("alone", grant.left_alone)) if value}
    wish = wish_data(grant.wish)
    return json.dumps({**data, "wish": wish} if wish else data, separators=(",", ":"))


def read_annotation(text: str) -> AnnotatedGrant:
    """Read a grant from the text of its annotation. :raises AnnotationError: for what `annotation_of` never makes."""
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"it is {len(text)} characters long")
        data = load_json(text)
        if not isinstance(data, dict) or data.get("v") != _ANNOTATION_VERSION:
            raise ValueError(f"it is no object with \"v\":{_ANNOTATION_VERSION}")
        keys = {"v", "policy", "since", *_LISTS, "own", "alone", "wish"}
        if data.keys() - keys:
            raise ValueError(f"it has the unknown key {min(data.keys() - keys)!r:.80}")
        since = data.get("since", 0)
        if type(since) is not int or not 0 <= since < 1 << 63:
            raise ValueError("\"since\" is no time in nanoseconds")
        texts = [data.get(key, "") for key in _LISTS]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("\"cpus\", \"spare\", \"near\" and \"devices\" are lists of numbers")
        cpus, spare, near, devices = map(CpuSet.parse, texts)
        return AnnotatedGrant(wish_of(data.get("wish", {})), CpuPolicy(str(data.get("policy"))), cpus, spare,
                              data.get("own") is True, since, data.get("alone") is True, near, devices)
    except (ValueError, RecursionError) as err:
        raise AnnotationError(GRANT_KEY, text, shown(f"{err}") or "it is nested too deep") from None


class LedgerError(ValueError):
    """Data that is no ledger. The message names the place, the key and the value."""


def to_data(ledger: Ledger) -> dict[str, object]:
    """Return JSON data. Equal ledgers make equal data: grants are sorted, and defaults are left out."""
    return {"version": VERSION, "shared": str(ledger.shared),
            "grants": [grant_to_data(ledger.grants[key]) for key in sorted(ledger.grants)],
            "refused": [refused._asdict() for refused in ledger.refused]}


def from_data(data: object) -> Ledger:
    """Read the ledger from its data. :raises LedgerError: for data that `to_data` never makes, and for two pods that
    hold the same CPU."""
    try:
        return _ledger(_object("the ledger", data, {"version", "shared", "grants", "refused"}))
    except LedgerError:
        raise
    except (ValueError, TypeError) as err:
        raise LedgerError(f"the ledger: {err}") from None


def _ledger(data: Mapping[str, Any]) -> Ledger:
    if data.get("version") != VERSION:
        raise LedgerError(f"the ledger: version={data.get('version')!r:.80} is not {VERSION}")
    grants: dict[ContainerId, Grant] = {}
    for number, entry in enumerate(_list("grants", data)):
        grant = _grant(f"grant {number}", entry)
        if grant.container in grants:
            raise LedgerError(f"grant {number}: container={grant.container!r} has two grants")
        grants[grant.container] = grant
    _refuse_overlaps(grants)
    refused = tuple(_refused(f"refused request {number}", entry)
                    for number, entry in enumerate(_list("refused", data)[-MAX_REFUSED:]))
    return Ledger(grants, _cpus("the ledger", "shared", data.get("shared")), refused)


def _refuse_overlaps(grants: Mapping[ContainerId, Grant]) -> None:
    """A CPU is held by containers of one pod at most, and by one live container of it."""
    pods: dict[int, Grant] = {}
    live: dict[int, Grant] = {}
    for grant in grants.values():
        for cpu in grant.held:
            other = pods.setdefault(cpu, grant)
            if other.sandbox == grant.sandbox and grant.live:
                other = live.setdefault(cpu, grant)
            if other.sandbox != grant.sandbox or (grant.live and other is not grant):
                raise LedgerError(f"the ledger: CPU {cpu} is held by {other.container!r} and {grant.container!r}")


def grant_to_data(grant: Grant) -> dict[str, object]:
    """The JSON data of a grant, an entry of `to_data`."""
    data: dict[str, object] = {}
    for key, value, plain in zip(Grant._fields, grant, _PLAIN, strict=True):
        # Most are the default itself, and the ledger is written with each answer: comparing takes longer.
        if (value is not plain and value != plain) or key in _ALWAYS:
            data[key] = str(value) if key in _SETS else value
    if "amount" in data:
        data["amount"] = list(grant.amount)
    return {**data, "wish": wish_data(grant.wish)} if "wish" in data else data


def _grant(place: str, entry: object) -> Grant:
    data = _object(place, entry, set(Grant._fields))
    members: dict[str, Any] = {}
    for key, kind in _KINDS.items():
        value = data.get(key, getattr(_PLAIN, key))
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise LedgerError(f"{place}: {key}={value!r:.80} has the wrong type")
        members[key] = value
    for key in ("container", "sandbox"):
        if not members[key]:
            raise LedgerError(f"{place}: {key} is missing")
    members |= {key: _cpus(place, key, data.get(key, "")) for key in _SETS}
    members["policy"] = _read(place, "policy", CpuPolicy, str(data.get("policy")))
    members["state"] = _read(place, "state", GrantState, str(data.get("state")))
    members["wish"] = _read(place, "wish", wish_of, data.get("wish", {}))
    members["amount"] = _amount(place, data.get("amount", [0, 0, 0]))
    for key in ("node", "least_distance"):
        number = members[key] = data.get(key)
        if number is not None and (type(number) is not int or number < 0):
            raise LedgerError(f"{place}: {key}={number!r:.80} is no number from 0 on")
    return Grant(**members)


def _read(place: str, key: str, read: Callable[[_Given], _Read], value: _Given) -> _Read:
    try:
        return read(value)
    except ValueError as err:
        raise LedgerError(f"{place}: {key}: {err}") from None


def _amount(place: str, value: object) -> CpuAmount:
    if (not isinstance(value, list) or len(value) != 3
            or not all(type(number) is int and number >= 0 for number in value)):
        raise LedgerError(f"{place}: amount={value!r:.80} is no list of three numbers")
    return CpuAmount(*value)


def _refused(place: str, entry: object) -> RefusedRequest:
    data = _object(place, entry, set(RefusedRequest._fields))
    if not all(type(data.get(key)) is (int if key == "time_ns" else str) for key in RefusedRequest._fields[:-1]):
        raise LedgerError(f"{place}: {dict(data)!r:.200} lacks a text or its time")
    return RefusedRequest(**{**data, "kind": _read(place, "kind", RefusalKind, str(data.get("kind")))})


def _cpus(place: str, key: str, value: object) -> CpuSet:
    if value == "":
        return EMPTY
    try:
        if not isinstance(value, str):
            raise CpuSetError(f"{value!r:.80}", "it is no text")
        return CpuSet.parse(value)
    except CpuSetError as err:
        raise LedgerError(f"{place}: {key}: {err}") from None


def _list(key: str, data: Mapping[str, Any]) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise LedgerError(f"the ledger: {key}={value!r:.80} is no list")
    return value


def _object(place: str, data: object, keys: set[str]) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise LedgerError(f"{place}: {data!r:.80} is no object")
    if data.keys() - keys:
        raise LedgerError(f"{place}: unknown key {min(map(str, data.keys() - keys))!r:.80}")
    return data
