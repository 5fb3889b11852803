from __future__ import annotations

import copy
import pickle

import pytest
from effort import effort
from hypothesis import example, given
from hypothesis import strategies as st

from vmpin.cpuset import EMPTY, MAX_CPU, MAX_REGIONS, MAX_TEXT, CpuLists, CpuSet, CpuSetError, union

cpus = st.integers(0, MAX_CPU)
small = st.frozensets(st.integers(0, 40))
sets = st.one_of(small, st.frozensets(cpus, max_size=60))


def ranges(numbers: frozenset[int]) -> int:
    """How many runs of consecutive numbers there are."""
    return sum(number - 1 not in numbers for number in numbers)


@given(sets)
@example(frozenset())
@example(frozenset({MAX_CPU}))
def test_what_is_written_reads_back_the_same(numbers: frozenset[int]) -> None:
    made = CpuSet(numbers)
    assert CpuSet.parse(str(made)) == made
    assert CpuSet.from_bits(made.bits) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert copy.deepcopy(made) == made
    assert repr(made) == f"CpuSet({str(made)!r})"


@given(sets)
def test_output_is_canonical_and_has_one_region_per_run(numbers: frozenset[int]) -> None:
    text = str(CpuSet(numbers))
    regions = [region for region in text.split(",") if region]
    assert len(regions) == ranges(numbers)
    assert not set(text) - set("0123456789,-")
    firsts = [int(region.partition("-")[0]) for region in regions]
    assert firsts == sorted(firsts)
    assert not any(first == last for first, dash, last in (region.partition("-") for region in regions) if dash)


@given(sets, sets)
def test_algebra_is_that_of_sets(one: frozenset[int], other: frozenset[int]) -> None:
    a, b = CpuSet(one), CpuSet(other)
    assert (a & b).frozen() == one & other
    assert (a | b).frozen() == one | other
    assert (a - b).frozen() == one - other
    assert (a ^ b).frozen() == one ^ other
    assert ((a <= b), (a < b), (a >= b), (a > b)) == ((one <= other), (one < other), (one >= other), (one > other))
    assert (a == b) == (one == other)
    assert a.isdisjoint(b) == one.isdisjoint(other)
    assert union((a, b)) == a | b
    if one == other:
        assert hash(a) == hash(b)


@given(sets)
def test_iteration_ascends_and_agrees_with_len_contains_and_first(numbers: frozenset[int]) -> None:
    made = CpuSet(numbers)
    assert list(made) == sorted(numbers)
    assert len(made) == len(numbers)
    assert bool(made) == bool(numbers)
    assert all(number in made for number in numbers)
    assert -1 not in made
    assert MAX_CPU + 1 not in made
    if numbers:
        assert made.first == min(numbers)


@given(cpus, cpus, st.integers(0, 300), st.integers(1, 300))
def test_a_stride_takes_the_first_of_every_group(one: int, other: int, used: int, group: int) -> None:
    first, last = sorted((one, other))
    text = f"{first}-{last}:{used}/{group}"
    if used > group:
        with pytest.raises(CpuSetError):
            CpuSet.parse(text)
        return
    assert CpuSet.parse(text).frozen() == {
        cpu for cpu in range(first, last + 1) if (cpu - first) % group < used}


@given(st.one_of(st.text(), st.text(alphabet="0123456789-,:/ \n\tNxa٣")))
def test_no_text_does_worse_than_a_cpu_set_error(text: str) -> None:
    refused = None
    try:
        made = CpuSet.parse(text)
        assert CpuSet.parse(str(made)) == made
    except CpuSetError as err:
        refused = err
    if refused is not None:
        assert refused.text == text
        assert len(str(refused)) < 500


ONES = frozenset(range(32))


@pytest.mark.parametrize(("text", "expected"), [
    # lib/test_bitmap.c: parselist_tests
    ("0", {0}),
    ("1", {1}),
    ("0-15", set(range(16))),
    ("16-31", set(range(16, 32))),
    ("0-31:1/4", set(range(0, 32, 4))),
    ("0-31:1/31", {0, 31}),
    ("0-31:1/32", {0}),
    ("1-31:4/8", {cpu for cpu in range(1, 32) if (cpu - 1) % 8 < 4}),
    ("0-31:8/16", set(range(8)) | set(range(16, 24))),
    ("0-2047:128/256", {cpu for cpu in range(2048) if cpu % 256 < 128}),
    ("", set()),
    ("\n", set()),
    (",,  ,,  , ,  ,", set()),
    (" ,  ,,  , ,   \n", set()),
    ("0-0", {0}),
    ("31-31", {31}),
    ("0-0:0/1", set()),
    ("0-0:1/1", {0}),
    ("0-0:1/31", {0}),
    ("0-0:31/31", {0}),
    ("1-1:1/1", {1}),
    ("0-15:16/31", set(range(16))),
    ("15-15:1/2", {15}),
    ("15-31:1/31", {15}),
    ("16-31:16/31", set(range(16, 32))),
    ("0-31:1/3,1-31:1/3,2-31:1/3", ONES),
    ("1-10:8/12,8-31:24/29,0-31:0/3", set(range(1, 9)) | set(range(8, 32))),
    # what the kernel, the kubelet and people write
    ("0-7:2/4", {0, 1, 4, 5}),
    ("0-3,8\n", {0, 1, 2, 3, 8}),
    ("3,2,1,1-2", {1, 2, 3}),
    (" 1\t2\n3 ", {1, 2, 3}),
    ("007", {7}),
    (f"{MAX_CPU}", {MAX_CPU}),
])
def test_the_kernels_lists_mean_what_they_mean_to_the_kernel(text: str, expected: set[int]) -> None:
    assert CpuSet.parse(text).frozen() == expected


@pytest.mark.parametrize(("text", "why"), [
    ("3-1", "'3-1' runs backwards"),
    ("10-1", "runs backwards"),
    ("1-", "'1-' is no CPU"),
    ("-1", "'-1' is no CPU"),
    ("-0", "is no CPU"),
    ("0-\n", "'0-' is no CPU"),
    ("1 - 3", "'-' is no CPU"),
    ("1-2-3", "is no CPU"),
    ("0x3", "'0x3' is no CPU"),
    ("a", "'a' is no CPU"),
    ("a-31", "is no CPU"),
    ("0-a1", "is no CPU"),
    ("0-31:", "is no CPU"),
    ("0-31:0", "is no CPU"),
    ("0-31:0/", "is no CPU"),
    ("0-31:0/0", "takes 0 of every 0"),
    ("0-31:1/0", "takes 1 of every 0"),
    ("0-31:10/1", "takes 10 of every 1"),
    ("0-31:a/1", "is no CPU"),
    ("3:1/2", "is no CPU"),
    ("0-99999999999", "is no CPU"),
    ("0-98765432123456789:10/1", "is no CPU"),
    ("8192", "CPU 8192 is beyond 8191"),
    ("0-8192", "CPU 8192 is beyond 8191"),
    ("٣", "is no CPU"),
    ("1²", "is no CPU"),
    ("１", "is no CPU"),
    ("1_0", "is no CPU"),
    ("+1", "is no CPU"),
    ("1.0", "is no CPU"),
    ("(null)", "is no CPU"),
    ("0\0", "is no CPU"),
    ("0\u20031", "is no CPU"),  # an em space parts nothing
    ("0\x1c1", "is no CPU"),
    ("all", "is no CPU"),
    ("0-N", "is no CPU"),
    ("\udcff", "is no CPU"),  # what os.fsdecode makes of a byte that is no UTF-8
])
def test_what_is_no_list_is_refused_and_quoted(text: str, why: str) -> None:
    with pytest.raises(CpuSetError) as caught:
        CpuSet.parse(text)
    assert repr(text) in str(caught.value)
    assert why in str(caught.value)


def test_a_text_longer_than_any_machines_is_refused_and_not_repeated() -> None:
    with pytest.raises(CpuSetError, match="it is 100000 characters long") as caught:
        CpuSet.parse("0," * 50_000)
    assert len(str(caught.value)) < 200


def test_one_long_region_is_not_repeated_in_the_message() -> None:
    with pytest.raises(CpuSetError) as caught:
        CpuSet.parse("x" * MAX_TEXT)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("region", ["0-8191:1/2", "0-8191:9/4097", "0-8191:99999/999999", "0-8191"])
def test_the_costliest_text_that_is_read_costs_little(region: str) -> None:
    text = ",".join([region] * min(MAX_REGIONS, MAX_TEXT // (len(region) + 1)))
    # Milliseconds; a parser that sets each group of a stride by itself takes half a minute.
    assert effort(lambda: CpuSet.parse(text), 1) < 600


@pytest.mark.parametrize("numbers", [[-1], [MAX_CPU + 1], [0, 10**30]])
def test_a_number_that_is_no_cpu_makes_no_set(numbers: list[int]) -> None:
    with pytest.raises(CpuSetError):
        CpuSet(numbers)


@pytest.mark.parametrize("bits", [-1, 1 << (MAX_CPU + 1), 1 << 10**6], ids=["negative", "one more", "huge"])
def test_a_mask_that_reaches_too_far_makes_no_set(bits: int) -> None:
    with pytest.raises(CpuSetError) as caught:
        CpuSet.from_bits(bits)
    assert len(str(caught.value)) < 200


def test_a_set_does_not_change() -> None:
    with pytest.raises(AttributeError):
        CpuSet((1,))._bits = 3  # that it cannot be reached is what is tested
    assert CpuSet((1,)) != frozenset({1})


def test_the_empty_set_is_empty_and_has_no_first() -> None:
    assert not EMPTY
    assert str(EMPTY) == ""
    assert union(()) == EMPTY
    with pytest.raises(CpuSetError, match="empty"):
        _ = EMPTY.first


def test_a_list_has_no_more_regions_than_every_second_cpu_needs() -> None:
    every_second = ",".join(map(str, range(0, MAX_CPU + 1, 2)))
    assert len(CpuSet.parse(every_second)) == MAX_REGIONS
    with pytest.raises(CpuSetError, match=f"it has {MAX_REGIONS + 1} regions, at most {MAX_REGIONS} are read"):
        CpuSet.parse(every_second + ",none")


def test_the_lists_of_one_input_are_bounded_together() -> None:
    lists = CpuLists(10)
    assert [str(lists.parse(text)) for text in ("0-3,8", "0-3,8", "", " ,", "1 3 5")] == [
        "0-3,8", "0-3,8", "", "", "1,3,5"]
    with pytest.raises(CpuSetError, match="no CPU"):
        lists.parse("1,x,3")  # what is wrong counts, too: it may be wrong at its end
    assert lists.parse("7,9") == CpuSet((7, 9))
    assert lists.parse("1 3 5") == CpuSet((1, 3, 5))
    with pytest.raises(CpuSetError, match="it has 1 regions, at most 0 are read"):
        lists.parse("7")


@pytest.mark.parametrize("text", ["0-7:2/4", "0-8191:1/4095", "1,0-0:1/1"])
def test_a_stride_is_not_what_a_program_writes(text: str) -> None:
    CpuSet.parse(text)
    with pytest.raises(CpuSetError, match="is a stride"):
        CpuLists().parse(text)
