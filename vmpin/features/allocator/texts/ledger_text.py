"""The ledger as JSON data and back.

What is read is checked as a whole: data that the ledger never makes is an error that names the place, the key and the
value, and its file is then set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.features.allocator.grants.cpu_request import CpuPolicy
from vmpin.features.allocator.grants.ledger import MAX_REFUSED, CpuAmount, Grant, GrantState, Ledger, RefusedRequest
from vmpin.features.allocator.grants.refusal import RefusalKind
from vmpin.features.allocator.texts.wish_data import wish_data, wish_of

VERSION: Final = 1
_Given = TypeVar("_Given")
_Read = TypeVar("_Read")
_SETS = ("cpus", "spare", "written", "near", "devices")
_TEXTS = ("container", "sandbox", "name", "namespace", "pod", "pod_uid", "group", "annotated")
_FLAGS = ("own_spare", "left_alone", "vm", "guaranteed")
_NUMBERS = ("vm_vcpus", "vm_most", "vm_part", "vm_overhead", "since_ns")
_ALWAYS = frozenset({"container", "sandbox", "policy", "state"})
_PLAIN = Grant(ContainerId(""), SandboxId(""), "", "", "", "", wish_of({}), CpuPolicy.NONE)


class LedgerError(ValueError):
    """Data that is no ledger. The message names the place, the key and the value."""


def to_data(ledger: Ledger) -> dict[str, object]:
    """Return JSON data. Equal ledgers make equal data: grants are sorted, and what is as by default is left out."""
    return {"version": VERSION, "shared": str(ledger.shared),
            "grants": [_grant_data(ledger.grants[key]) for key in sorted(ledger.grants)],
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


def _grant_data(grant: Grant) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value, plain in zip(Grant._fields, grant, _PLAIN, strict=True):
        # Most are the default itself. It is written with each answer: comparing takes longer.
        if (value is not plain and value != plain) or key in _ALWAYS:
            found[key] = str(value) if key in _SETS else value
    if "amount" in found:
        found["amount"] = list(grant.amount)
    return {**found, "wish": wish_data(grant.wish)} if "wish" in found else found


def _grant(place: str, entry: object) -> Grant:
    data = _object(place, entry, set(Grant._fields))
    found: dict[str, Any] = {}
    kinds = [*((key, str) for key in _TEXTS), *((key, bool) for key in _FLAGS), *((key, int) for key in _NUMBERS)]
    for key, kind in kinds:
        value = data.get(key, getattr(_PLAIN, key))
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise LedgerError(f"{place}: {key}={value!r:.80} has the wrong type")
        found[key] = value
    for key in ("container", "sandbox"):
        if not found[key]:
            raise LedgerError(f"{place}: {key} is missing")
    found |= {key: _cpus(place, key, data.get(key, "")) for key in _SETS}
    found["policy"] = _read(place, "policy", CpuPolicy, str(data.get("policy")))
    found["state"] = _read(place, "state", GrantState, str(data.get("state")))
    found["wish"] = _read(place, "wish", wish_of, data.get("wish", {}))
    found["amount"] = _amount(place, data.get("amount", [0, 0, 0]))
    node = data.get("node")
    if node is not None and (type(node) is not int or node < 0):
        raise LedgerError(f"{place}: node={node!r:.80} is no NUMA node")
    return Grant(**found, node=node)


def _read(place: str, key: str, read: Callable[[_Given], _Read], value: _Given) -> _Read:
    try:
        return read(value)
    except ValueError as err:
        raise LedgerError(f"{place}: {key}: {err}") from None


def _amount(place: str, value: object) -> CpuAmount:
    if not isinstance(value, list) or len(value) != 3 or not all(type(one) is int and one >= 0 for one in value):
        raise LedgerError(f"{place}: amount={value!r:.80} is no list of three numbers")
    return CpuAmount(*value)


def _refused(place: str, entry: object) -> RefusedRequest:
    data = _object(place, entry, set(RefusedRequest._fields))
    data = {"kind": RefusalKind.REQUEST, **data}  # ledgers of older versions have none
    if not all(type(data.get(key)) is (int if key == "time_ns" else str) for key in RefusedRequest._fields[:-1]):
        raise LedgerError(f"{place}: {dict(data)!r:.200} lacks a text or its time")
    try:
        return RefusedRequest(**{**data, "kind": RefusalKind(data["kind"])})
    except ValueError as err:
        raise LedgerError(f"{place}: kind: {err}") from None


def _cpus(place: str, key: str, value: object) -> CpuSet:
    try:
        return CpuSet.parse(value) if isinstance(value, str) and value else _no_cpus(value)
    except CpuSetError as err:
        raise LedgerError(f"{place}: {key}: {err}") from None


def _no_cpus(value: object) -> CpuSet:
    if value != "":
        raise CpuSetError(f"{value!r:.80}", "it is no text")
    return EMPTY


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
