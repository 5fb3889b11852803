"""The CPU manager's checkpoint: as every kubelet writes it, and as none does."""

from __future__ import annotations

import contextlib
import json
import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from effort import unit
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import MAX_REGIONS, CpuSet
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.errors import SourceError
from vmpin.runtime import kubelet
from vmpin.runtime.kubelet import MAX_ENTRIES, fnv32a, parse_checkpoint

UID = "235148fe-393f-47a8-a17d-bd55bc1a836b"
#: The checksums are those of the kubelet's own tests (state_checkpoint_test.go) and of nodes in the field.
NONE = {"policyName": "none", "defaultCpuSet": "", "checksum": 1353318690}
V2 = {"policyName": "static", "defaultCpuSet": "0,2-12,14-23", "entries": {UID: {"cgroup1-0": "1,13"}},
      "checksum": 1552716370}
V3 = {"policyName": "static", "defaultCPUSet": "1-2", "entries": {"pod1": {"container1": "5-6", "container2": "3-4"}},
      "podEntries": {"pod2": {"cpuSet": "7-9"}}, "checksum": 766259872}
V4 = {"policyName": "other", "defaultCPUSet": "1-9", "checksum": 1234, "dataChecksum": 1032795074,
      "data": '{"policyName":"static","defaultCPUSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"7-9"}},'
              '"podEntries":{"pod":{"cpuSet":"4-10"}},'
              '"baselines":{"pod":{"container1":{"baseline":"4-5"},"container2":{"baseline":"7-8"}}}}'}
SHAPES: tuple[dict[str, Any], ...] = (NONE, V2, V3, V4)


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def parsed(content: object) -> CpuManagerState:
    return parse_checkpoint(json.dumps(content).encode())


def refusal(raw: bytes) -> str:
    with pytest.raises(SourceError) as caught:
        parse_checkpoint(raw)
    return caught.value.why


# --- as it should be -------------------------------------------------------------------------------------------------

def test_the_static_policys_checkpoint_has_owners_and_the_shared_pool() -> None:
    assert parsed(V2) == CpuManagerState("static", cpus("0,2-12,14-23"), {(UID, "cgroup1-0"): cpus("1,13")},
                                         version=2, checksum_ok=True)
    assert parsed(V2).static


def test_without_a_cpu_manager_no_cpu_has_an_owner() -> None:
    assert parsed(NONE) == CpuManagerState("none", CpuSet(), version=2, checksum_ok=True)
    assert not parsed(NONE).static
    assert not parsed(NONE).exclusive


def test_a_pod_may_own_cpus_as_a_whole() -> None:
    assert parsed(V3) == CpuManagerState(
        "static", cpus("1-2"), {("pod1", "container1"): cpus("5-6"), ("pod1", "container2"): cpus("3-4")},
        {"pod2": cpus("7-9")}, version=3, checksum_ok=True)
    assert parsed(V3).exclusive == cpus("3-9")


def test_the_data_of_the_newest_kubelet_counts_and_the_rest_does_not() -> None:
    assert parsed(V4) == CpuManagerState(
        "static", cpus("1-3"), {("pod", "container1"): cpus("4-6"), ("pod", "container2"): cpus("7-9")},
        {"pod": cpus("4-10")}, version=4, checksum_ok=True)


@pytest.mark.parametrize("data", ["", None, 7, {}])
def test_what_is_no_data_is_an_older_kubelets_file(data: object) -> None:
    assert parsed({**V2, "data": data, "dataChecksum": 0}) == parsed(V2)


@pytest.mark.parametrize("fold", [str.lower, str.upper, str.swapcase])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_case_of_keys_does_not_matter_and_unknown_ones_are_ignored(shape: dict[str, Any], fold: Any) -> None:
    other = {fold(key): value for key, value in shape.items()} | {"exclusiveCPUBaselines": {"x": [1, None]}}
    assert parsed(other) == parsed(shape)


def test_entries_may_be_missing_null_or_without_cpus() -> None:
    found: tuple[dict[str, Any], ...] = (
        {}, {"entries": None}, {"entries": {}}, {"entries": {"pod": {"app": ""}}},
        {"entries": {"pod": {}}}, {"podEntries": {"pod": {"cpuSet": ""}}})
    for entries in found:
        state = parsed({"policyName": "static", "defaultCpuSet": "0-3", **entries})
        assert (state.default, state.exclusive, state.entries) == (cpus("0-3"), CpuSet(), {})


# --- the checksum ----------------------------------------------------------------------------------------------------

def test_fnv_is_fnv() -> None:
    assert fnv32a(b"") == 0x811C9DC5
    assert fnv32a(b"foobar") == 0xBF9CF968


@pytest.mark.parametrize(("content", "checksum"), [
    ({"policyName": "none", "defaultCPUSet": "4-6"}, 354655845),
    # without pod entries, but by a kubelet that has them
    ({"policyName": "static", "defaultCPUSet": "7-9", "entries": {"pod": {"container1": "4-6", "container2": "1-3"}}},
     1942532442),
    # under the name of its own version
    ({key: value for key, value in V3.items() if key != "checksum"}, 2284712151),
])
def test_checksums_of_kubelets_are_reproduced(content: dict[str, Any], checksum: int) -> None:
    assert parsed({**content, "checksum": checksum}).checksum_ok is True
    wrong = parsed({**content, "checksum": checksum + 1})
    assert wrong.checksum_ok is False
    assert "checksum does not match" in wrong.trouble


def test_the_checksum_of_data_is_of_the_text_as_it_stands() -> None:
    data = '{"policyName":"none","defaultCPUSet":"4-6"}'
    assert parsed({"data": data, "dataChecksum": 657950972}).checksum_ok is True
    assert parsed({"data": data + " ", "dataChecksum": 657950972}).checksum_ok is False
    assert parsed({"data": data}).checksum_ok is False


@pytest.mark.parametrize("checksum", [0, None])
def test_no_checksum_is_no_trouble(checksum: object) -> None:
    state = parsed({**V2, "checksum": checksum})
    assert (state.checksum_ok, state.trouble) == (None, "")
    assert state.entries == parsed(V2).entries


@pytest.mark.parametrize("checksum", [1, "1552716370", [], True, -1, 1e300])
def test_a_wrong_checksum_is_reported_and_the_rest_believed(checksum: object) -> None:
    state = parsed({**V2, "checksum": checksum})
    assert state.checksum_ok is False
    assert state.entries == parsed(V2).entries
    assert state.trouble
    assert "1552716370" not in state.trouble  # else it is another line after every change


def test_a_long_checkpoint_is_read_without_its_checksum() -> None:
    entries = {f"pod-{at}": {f"app-{'x' * 80}": str(at)} for at in range(MAX_ENTRIES)}
    assert parsed({"policyName": "static", "defaultCpuSet": "", "entries": entries, "checksum": 7}).checksum_ok is None
    # short in the file, and long as Go dumps it
    pods = {f"p{at}": {"cpuSet": "0-8191"} for at in range(1000)}
    tracemalloc.start()
    try:
        parsed({"policyName": "static", "defaultCpuSet": "", "podEntries": pods, "checksum": 7})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


# --- oddities --------------------------------------------------------------------------------------------------------

def test_containers_of_one_pod_may_share_cpus_as_an_init_containers_are_handed_on() -> None:
    state = parsed({"policyName": "static", "defaultCpuSet": "0-1",
                    "entries": {"pod": {"init": "2-3", "app": "2-5"}}, "podEntries": {"pod": {"cpuSet": "2-7"}}})
    assert state.trouble == ""


@pytest.mark.parametrize(("content", "trouble"), [
    ({"entries": {"a": {"app": "2-4"}, "b": {"app": "4-5"}}}, "CPUs 4 are exclusive to more than one pod"),
    ({"entries": {"a": {"app": "2-4"}}, "podEntries": {"b": {"cpuSet": "2,3,9"}}},
     "CPUs 2-3 are exclusive to more than one pod"),
    ({"entries": {"a": {"app": "1-2"}}}, "CPUs 1 are both exclusive and shared"),
])
def test_what_cannot_be_true_at_once_is_reported(content: dict[str, Any], trouble: str) -> None:
    assert parsed({"policyName": "static", "defaultCpuSet": "0-1", **content}).trouble == trouble


def test_a_pod_whose_cpus_are_shared_again_has_ended() -> None:
    """As the static policy of 1.37.2 wrote when a pod with CPUs of its own as a whole ended: its entry goes last."""
    released = ('{"policyName":"static","defaultCpuSet":"2-31","checksum":3459478641,"data":"{\\"policyName\\":'
                '\\"static\\",\\"defaultCpuSet\\":\\"2-31\\",\\"podEntries\\":{\\"00000001-0000-4000-8000-000000000000\\":'
                '{\\"cpuSet\\":\\"2-11\\"}}}","dataChecksum":1825067113}')
    found = parse_checkpoint(released.encode())
    assert (found.trouble, found.pods, found.exclusive, found.checksum_ok) == ("", {}, CpuSet(()), True)
    before = released.replace('Set\\":\\"2-31', 'Set\\":\\"12-31')
    assert parse_checkpoint(before.encode()).pods == {"00000001-0000-4000-8000-000000000000": cpus("2-11")}


def test_cpus_that_the_kubelet_reserves_for_system_pods_are_no_containers_own() -> None:
    """StarlingX' kubelet lists its reserved CPUs for each container of a platform pod. The checksum is of the file."""
    platform = {uid: {name: "0-1"} for uid, name in (
        ("3f1c", "kube-proxy"), ("77ab", "calico-node"), ("9d02", "kube-multus"))}
    entries = {**platform, "c4e1": {"app": "4-5"}}
    dump = " ".join(f"{uid}:map[{name}:{cpus}]" for uid, names in sorted(entries.items())
                    for name, cpus in names.items())
    checksum = fnv32a(("(*state.CPUManagerCheckpoint){PolicyName:(string)static DefaultCPUSet:(string)2-3,6-7 "
                       f"Entries:(map[string]map[string]string)map[{dump}] Checksum:(checksum.Checksum)0}}").encode())
    state = parsed({"policyName": "static", "defaultCpuSet": "2-3,6-7", "entries": entries, "checksum": checksum})
    assert (state.trouble, state.checksum_ok) == ("", True)
    assert state.entries == {("c4e1", "app"): CpuSet.parse("4-5")}
    # Of two pods it is a fault of the kubelet, and so it is with CPUs of the pool.
    two = {"policyName": "static", "defaultCpuSet": "2-7", "entries": {uid: platform[uid] for uid in ("3f1c", "77ab")}}
    assert parsed(two).trouble == "CPUs 0-1 are exclusive to more than one pod"
    assert "both exclusive and shared" in parsed({**two, "defaultCpuSet": "0-7", "entries": platform}).trouble
    # But not while the others have ended; CPUs that have been in the pool since are given to anyone.
    few = parse_checkpoint(json.dumps(two).encode(), reserved=state.reserved)
    assert (few.trouble, few.entries, few.reserved) == ("", {}, state.reserved)
    pooled = parse_checkpoint(json.dumps({**two, "defaultCpuSet": "1-7"}).encode(), reserved=state.reserved)
    assert (len(pooled.entries), pooled.reserved) == (2, frozenset())


# --- what cannot be believed -----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("raw", "why"), [
    (b"", "is empty"),
    (b" \n\0\0", "is empty"),
    (b"{", "is not JSON"),
    (json.dumps(V2).encode()[:-9], "is not JSON"),
    (b'{"policyName":"static","defaultCpuSet":"\xff"}', "is not JSON"),
    (b"[" * 100_000, "is not JSON"),
    (b'{"checksum":' + b"9" * 5000 + b"}", "a number is too long"),
    (b'{"checksum":1e999}', "is infinite"),
    (b'{"checksum":Infinity}', "Infinity is no number"),
    (b'{"checksum":[' + b"1," * 10_000 + b"1]}", "it holds more than 8192 values"),
    (b'{"policyName":"static","defaultCpuSet":"0-7:1/2"}', "'0-7:1/2' is a stride, which only people write"),
    (b"[]", "is no JSON object"),
    (b"null", "is no JSON object"),
    (b"{}", "policyName None is no policy's name"),
    (b'{"machineState":{},"policyName":"Static\\u001b[2J","checksum":1}',
     "policyName 'Static\\x1b[2J' is no policy's name"),
    (b'{"policyName":"static","defaultCpuSet":"0-x"}', "invalid CPU list '0-x': '0-x' is no CPU, range or stride"),
    (b'{"policyName":"static","defaultCpuSet":[0]}', "[0] is no CPU list"),
    (b'{"policyName":"static","entries":[]}', "entries are no object"),
    (b'{"policyName":"static","entries":{"p":3}}', "entry 'p' is no object"),
    (b'{"policyName":"static","entries":{"p":{"c":"3-1"}}}', "runs backwards"),
    (b'{"policyName":"static","entries":{"p":{"c":"9999"}}}', "CPU 9999 is beyond"),
    (b'{"policyName":"static","entries":{"p":{"c":null}}}', "None is no CPU list"),
    (b'{"policyName":"static","entries":{"../p":{"c":"1"}}}', "'../p' is no id or name"),
    (b'{"policyName":"static","entries":{"p":{"c\\n":"1"}}}', "'c\\n' is no id or name"),
    (b'{"policyName":"static","entries":{"p":{"c":"1"},"id":"2"}}', "entry 'id' is no object"),
    (b'{"policyName":"static","podEntries":{"p":"1"}}', "None is no CPU list"),
    (b'{"policyName":"static","podEntries":7}', "podentries are no object"),
    (b'{"policyName":"none","data":"{"}', "is not JSON"),
    (b'{"policyName":"none","data":"[]"}', "is no JSON object"),
])
def test_what_is_none_is_refused_with_what_is_wrong(raw: bytes, why: str) -> None:
    assert why in refusal(raw)
    assert len(refusal(raw)) < 400


def test_a_huge_file_is_refused() -> None:
    assert "at most" in refusal(b" " * (kubelet.MAX_BYTES + 1))


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(SourceError):
        parse_checkpoint(raw)


def _mutated(draw: random.Random, raw: bytes) -> bytes:
    """`raw` with bytes changed, cut out, doubled or from elsewhere."""
    at, end = sorted((draw.randrange(len(raw) + 1), draw.randrange(len(raw) + 1)))
    match draw.randrange(6):
        case 0:
            return raw[:at]
        case 1:
            return raw[:at] + raw[end:]
        case 2:
            return raw[:at] + raw[at:end] * 3 + raw[end:]
        case 3:
            return raw[:at] + draw.randbytes(draw.randrange(1, 9)) + raw[at:]
        case 4:
            return raw[:at] + bytes([draw.randrange(32, 127)]) + raw[at + 1:]
        case _:
            other = json.dumps(draw.choice(SHAPES)).encode()
            return raw[:at] + other[draw.randrange(len(other)):]


_ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1e999, "", "0-8191", "0-8191:1/2", "7-0", "x" * 300, "\x00", "\ud800", [], {}, {"": ""},
    {"cpuSet": "1"}, {"app": "1"}, [[[]]], 1 << 70)


def _distorted(draw: random.Random, value: object) -> object:
    """A JSON value with some of what is in it replaced by what does not belong there."""
    if draw.random() < 0.15:
        return draw.choice(_ODD)
    if isinstance(value, dict):
        found = {draw.choice((key, key, key, key.upper(), "../x", "data")): _distorted(draw, item)
                 for key, item in value.items()}
        return found | ({"podEntries": draw.choice(_ODD)} if draw.random() < 0.05 else {})
    return value


def _distortions(count: int) -> Iterator[bytes]:
    draw = random.Random(4)
    for number in range(count):
        shape = draw.choice(SHAPES)
        if number % 2:
            yield _mutated(draw, json.dumps(shape).encode())
            continue
        if draw.random() < 0.3:
            shape = {**V4, "data": json.dumps(_distorted(draw, json.loads(str(V4["data"]))))}
        yield json.dumps(_distorted(draw, shape)).encode()


def test_40000_distorted_checkpoints_are_read_or_refused() -> None:
    understood = 0
    worst = 0.0
    longest = 0
    for raw in _distortions(40_000):
        begin = time.thread_time()
        try:
            state = parse_checkpoint(raw)
        except SourceError as err:
            longest = max(longest, len(str(err)))
        else:
            understood += 1
            assert all(cpus for cpus in (*state.entries.values(), *state.pods.values()))
        worst = max(worst, time.thread_time() - begin)
    assert 1000 < understood < 39_000
    assert worst < 100 * unit()
    assert longest < 400


def test_distorted_checkpoints_take_no_memory_to_speak_of() -> None:
    tracemalloc.start()
    try:
        for raw in _distortions(2000):
            with contextlib.suppress(SourceError):
                parse_checkpoint(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(("shape", "fits", "beyond"), [
    (lambda many: {"entries": {f"uid{at // 8}": {f"c{each}": "" for each in range(at, min(at + 8, many))}
                               for at in range(0, many, 8)}}, MAX_ENTRIES, MAX_ENTRIES + 1),
    (lambda many: {"podEntries": {f"uid{at}": {"cpuSet": ""} for at in range(many)}}, MAX_ENTRIES, MAX_ENTRIES + 1)])
def test_a_checkpoint_with_more_entries_than_cpus_is_refused(shape: Any, fits: int, beyond: int) -> None:
    """Each pass looks at every entry: what fits into a file could cost it seconds."""
    head = {"policyName": "static", "defaultCpuSet": "0"}
    parsed({**head, **shape(fits)})
    with pytest.raises(SourceError, match=f"names more than {MAX_ENTRIES} containers and pods"):
        parsed({**head, **shape(beyond)})


def test_the_cpu_lists_of_a_checkpoint_are_bounded_together() -> None:
    """All entries are disjoint, so that their ranges are no more than there are CPUs."""
    half = MAX_REGIONS // 2
    lists = [",".join(str(2 * number + odd) for number in range(half)) for odd in (0, 1)]
    parsed({"policyName": "static", "defaultCpuSet": lists[0], "entries": {"uid": {"app": lists[1]}}})
    with pytest.raises(SourceError, match="at most 0 are read"):
        parsed({"policyName": "static", "defaultCpuSet": lists[0],
                "entries": {"uid": {"app": lists[1], "other": "9"}}})
