"""Parses the checkpoint of the kubelet's CPU manager (`cpu_manager_state`): the exclusive CPUs of containers, and the
shared pool.

Supports the versions of the format (pkg/kubelet/cm/cpumanager/state/checkpoint.go) that kubelets since 1.18 write: V4
of 1.37, V3 of 1.36 with pod level resources, and V2. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from vmpin.cpuset import EMPTY, CpuLists, CpuSet, CpuSetError
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import valid_id
from vmpin.errors import SourceError
from vmpin.runtime.documents import parse_object

NAME = "cpu_manager_state"
MAX_BYTES = 1 << 20  #: A node full of pods has some 40 kB.
#: Containers and pods with exclusive CPUs. The largest machines have some 2,000 CPUs, and no kubelet a thousand pods.
MAX_ENTRIES = 1024
#: So many pods with the very same CPUs, outside the shared pool, are system pods on CPUs that are reserved for them:
#: StarlingX' kubelet lists these so (starlingx/integ: kubelet-cpumanager-infra-pods-use-system-reserved-CP.patch), and
#: never puts them into the pool (kubelet-cpumanager-keep-normal-containers-off-reserv.patch).
SYSTEM_PODS = 3
#: The most bytes for which checksums are computed, which takes some 0.1 µs per byte in Python.
MAX_CHECKED = 64 << 10


def parse_checkpoint(raw: bytes, where: str = NAME, reserved: Collection[CpuSet] = ()) -> CpuManagerState:
    """Parse a checkpoint. A wrong checksum is only recorded in `trouble`: the kubelet computes it from a dump of a Go
    struct with its types, so it has changed between kubelet versions without any change of CPUs.
    :param where: the name of the file, for errors. :param reserved: by the checkpoint before: they are so as long as
        they are outside the pool, however few of the system pods are left.
    :raises SourceError: it is empty, truncated, in another format, or has an invalid CPU list."""
    if len(raw) > MAX_BYTES:
        raise SourceError(where, f"is {len(raw)} bytes long, at most {MAX_BYTES} are read")
    if not raw.strip(b" \t\r\n\0"):
        raise SourceError(where, "is empty")
    outer = _object(raw, where)
    data = outer.get("data")
    if isinstance(data, str) and data:
        # The rest of the file is for older kubelets; newer ones ignore it.
        state = _contents(_object(data, f"{where}: data"), where, reserved)._replace(version=4)
        return _with_trouble(state, _matches(outer.get("datachecksum"), [f"(string){data}"]))
    state = _contents(outer, where, reserved)
    checksum = outer.get("checksum")
    return _with_trouble(state, None if checksum in (0, None) else _matches(checksum, _dumps(outer, state)))


def _object(raw: bytes | str, where: str) -> dict[str, object]:
    """Parse a JSON object; keys are converted to lower case, because Go's parser ignores case."""
    return {key.lower(): value for key, value in parse_object(raw, where, 8 * MAX_ENTRIES).items()}


def _contents(document: dict[str, object], where: str, before: Collection[CpuSet]) -> CpuManagerState:
    lists = CpuLists()
    policy = document.get("policyname")
    if not isinstance(policy, str) or not valid_id(policy):
        raise SourceError(where, f"policyName {_short(policy)} is no policy's name")
    default = _cpus(lists, document.get("defaultcpuset", ""), f"{where}: defaultCpuSet")
    entries: dict[tuple[str, str], CpuSet] = {}
    pods: dict[str, CpuSet] = {}
    listed, by_pod = _mapping(document, "entries", where), _mapping(document, "podentries", where)
    if len(by_pod) + sum(len(value) if isinstance(value, dict) else 1 for value in listed.values()) > MAX_ENTRIES:
        raise SourceError(where, f"names more than {MAX_ENTRIES} containers and pods")
    for key, value in listed.items():
        if not isinstance(value, dict):
            raise SourceError(where, f"entry {_short(key)} is no object")
        for name, cpus in value.items():
            entries[_id(key, where), _id(name, where)] = _cpus(lists, cpus, f"{where}: entry {key}/{name}")
    for key, value in by_pod.items():
        folded = {name.lower(): cpus for name, cpus in value.items()} if isinstance(value, dict) else {}
        pods[_id(key, where)] = _cpus(lists, folded.get("cpuset"), f"{where}: pod entry {key}")
    reserved = _reserved(entries, default, before)
    return CpuManagerState(policy, default,
                           {key: cpus for key, cpus in entries.items() if cpus and cpus not in reserved},
                           {uid: cpus for uid, cpus in pods.items() if cpus}, 3 if pods else 2, reserved=reserved)


def _reserved(entries: Mapping[tuple[str, str], CpuSet], default: CpuSet,
              before: Collection[CpuSet]) -> frozenset[CpuSet]:
    """The CPUs of system pods."""
    pods: dict[CpuSet, set[str]] = {}
    for (uid, _), cpus in entries.items():
        pods.setdefault(cpus, set()).add(uid)
    many = (cpus for cpus, uids in pods.items() if len(uids) >= SYSTEM_PODS)
    return frozenset(cpus for cpus in (*many, *before) if cpus and cpus.isdisjoint(default))


def _with_trouble(state: CpuManagerState, checksum_ok: bool | None) -> CpuManagerState:
    # The kubelet shares the CPUs of a pod that ends before it removes the pod's entry (policy_static.go:
    # RemoveContainer).
    listed = {uid for uid, _ in state.entries}
    pods = {uid: cpus for uid, cpus in state.pods.items() if uid in listed or not cpus <= state.default}
    state = state._replace(pods=pods)
    troubles = list(_overlaps(state))
    if checksum_ok is False:
        # Without the numbers, so that not every change of the file gives a new text.
        troubles.append("its checksum does not match: it was edited, or its kubelet computes another one")
    return state._replace(checksum_ok=checksum_ok, trouble="; ".join(troubles))


def _mapping(document: dict[str, object], key: str, where: str) -> dict[str, object]:
    value = document.get(key)
    if value is not None and not isinstance(value, dict):
        raise SourceError(where, f"{key} are no object")
    return value or {}


def _id(text: str, where: str) -> str:
    if not valid_id(text):
        raise SourceError(where, f"{_short(text)} is no id or name")
    return text


def _cpus(lists: CpuLists, value: object, where: str) -> CpuSet:
    if not isinstance(value, str):
        raise SourceError(where, f"{_short(value)} is no CPU list")
    try:
        return lists.parse(value)
    except CpuSetError as err:
        raise SourceError(where, str(err)) from err


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _overlaps(state: CpuManagerState) -> Iterator[str]:
    """Describe overlaps: CPUs of two pods, and those with which a kubelet refuses to start (policy_static.go:
    validateState)."""
    seen = twice = EMPTY
    for cpus in state.by_pod.values():
        twice |= seen & cpus
        seen |= cpus
    if twice:
        yield f"CPUs {twice} are exclusive to more than one pod"
    if seen & state.default:
        yield f"CPUs {seen & state.default} are both exclusive and shared"


def _matches(checksum: object, dumps: Iterable[str]) -> bool | None:
    """Whether one of the dumps has this checksum; None if they are too long to check."""
    left = MAX_CHECKED
    for dump in dumps:
        raw = dump.encode("utf-8", "surrogatepass")
        left -= len(raw)
        if left < 0:
            return None
        if fnv32a(raw) == checksum:
            return True
    return False


def fnv32a(raw: bytes) -> int:
    """FNV-1a of 32 bits, Go's hash/fnv."""
    checksum = 0x811C9DC5
    for byte in raw:
        checksum = (checksum ^ byte) * 0x01000193 & 0xFFFFFFFF
    return checksum


def _dumps(document: dict[str, object], state: CpuManagerState) -> Iterator[str]:
    """Yield the texts from which kubelets compute the checksum: go-spew's `%#v` of their struct, under each name that
    the struct has had. It prints the types of a struct's fields, but not those of a map's keys and values."""
    head = (f"PolicyName:(string){state.policy} DefaultCPUSet:(string){document.get('defaultcpuset', '')} "
            f"Entries:(map[string]map[string]string){_map(document.get('entries') or {})}")
    if not state.pods:
        yield from (_struct(name, head) for name in ("", "V2"))
    if sum(map(len, state.pods.values())) * 8 <= MAX_CHECKED:  # `0-8191` is short, its dump is not
        by_pod = {uid: "{CPUSet:(cpuset.CPUSet){elems:(map[int]struct {})" + _map({cpu: "{}" for cpu in cpus}) + "}}"
                  for uid, cpus in state.pods.items()}
        yield from (_struct(name, f"{head} PodEntries:(state.PodCPUAssignments){_map(by_pod)}") for name in ("", "V3"))


def _struct(name: str, fields: str) -> str:
    return f"(*state.CPUManagerCheckpoint{name}){{{fields} Checksum:(checksum.Checksum)0}}"


def _map(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return f"map[{' '.join(f'{key}:{_map(value[key])}' for key in sorted(value))}]"
