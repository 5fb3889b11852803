"""Numbers from outside are bounded in digits, value and count."""

from __future__ import annotations

import json

import pytest

from vmpin.bounded import checked_parse, load_json, parse_real, parse_whole, parse_wholes, real, whole


@pytest.mark.parametrize(("text", "number"), [
    ("0", 0), ("8192", 8192), (b"17", 17), ("007", 7),
    ("8193", None), ("000000001999999999", None), ("9" * 5000, None), (b"9" * 5000, None), ("", None), ("-1", None),
    ("+1", None), (" 1", None), ("1\n", None), ("1_0", None), ("1.0", None), ("1e3", None), ("٣", None), ("²", None),
    ("0x10", None), ("x", None)])
def test_a_text_is_a_whole_number_within_its_bound_or_none(text: str | bytes, number: int | None) -> None:
    assert parse_whole(text, 8192) == number


@pytest.mark.parametrize(("text", "number"), [
    ("1f", 31), ("0x1f", 31), (b"000001ffffffffff", (1 << 41) - 1), ("f" * 16, (1 << 64) - 1),
    ("1" + "0" * 16, None), ("0x" + "0" * 4000, None), ("-1f", None), ("1_f", None), ("g", None), ("0x", None),
    ("", None)])
def test_hexadecimal_numbers_are_bounded_alike(text: str | bytes, number: int | None) -> None:
    assert parse_whole(text, (1 << 64) - 1, base=16) == number


def test_a_least_number_is_a_bound_too() -> None:
    assert [parse_whole(text, 9, 1) for text in ("0", "1", "9", "10")] == [None, 1, 9, None]


def test_where_a_number_has_to_be_the_error_quotes_the_beginning_of_the_text() -> None:
    assert checked_parse("9", 9) == 9
    with pytest.raises(ValueError, match=r"^'x{40}' is no whole number from 0 to 9$"):
        checked_parse("x" * 5000, 9)


def test_a_list_of_numbers_ends_at_its_count() -> None:
    taken: list[str] = []

    def texts() -> object:
        while True:
            taken.append("1")
            yield "1"

    assert parse_wholes(texts(), 9, 100) is None  # type: ignore[arg-type]
    assert len(taken) == 101, "no more is read than counts"
    assert parse_wholes(["1", "2"], 9, 2) == [1, 2]
    assert parse_wholes(["1", "x"], 9, 2) is None
    assert parse_wholes([], 9, 0) == []


@pytest.mark.parametrize(("value", "number"), [
    (0, 0), (9, 9), (10, None), (-1, None), (True, None), (False, None), (1.0, None), ("1", None), (None, None),
    (1 << 70, None), (float("inf"), None), ([1], None)])
def test_a_value_is_a_whole_number_within_its_bound_or_none(value: object, number: int | None) -> None:
    found = whole(value, 9)
    assert (found, type(found)) == (number, type(number))


@pytest.mark.parametrize(("value", "number"), [
    (0, 0.0), (2.5, 2.5), (60, 60.0), (60.1, None), (-0.1, None), (float("inf"), None), (float("-inf"), None),
    (float("nan"), None), (True, None), (1 << 70, None), ("1", None), (None, None)])
def test_a_real_value_is_finite_and_within_its_bound_or_none(value: object, number: float | None) -> None:
    assert real(value, 60) == number


@pytest.mark.parametrize(("text", "number"), [
    ("0", 0.0), ("2.5", 2.5), ("2.", 2.0), ("1e1", 10.0), ("61", None), ("1e999", None), ("inf", None),
    ("nan", None), ("-1", None), ("1_0", None), (" 1", None), ("9" * 5000, None), ("", None), ("٣", None)])
def test_a_text_is_a_real_number_within_its_bound_or_none(text: str, number: float | None) -> None:
    assert parse_real(text, 60) == number


def test_an_unbounded_real_number_is_still_finite() -> None:
    assert real(float("inf"), float("inf")) is None
    assert parse_real("1e999", float("inf")) is None


@pytest.mark.parametrize("raw", [
    '{"a": Infinity}', '{"a": -Infinity}', '{"a": NaN}', '{"a": 1e999}', '{"a": ' + "9" * 5000 + "}",
    '{"a": ' + "9" * 41 + "}", '{"a": 0.' + "1" * 5000 + "}", "[" * 100_000, '{"a"', b"\xff",
    '{"a": [[1e999]]}'.encode("utf-16")])
def test_json_with_numbers_without_bounds_is_none(raw: str | bytes) -> None:
    with pytest.raises(ValueError):
        load_json(raw)


def test_other_json_is_read_as_ever() -> None:
    assert load_json(b'{"a": [1, -9223372036854775808, 2.5, 1e3, true, null, "9"]}') == {
        "a": [1, -9223372036854775808, 2.5, 1000.0, True, None, "9"]}


@pytest.mark.parametrize(("raw", "why"), [
    ('{"a": [' + "1," * 100 + "1]}", "more than 100 values"), ("[" + "[]," * 50 + "1]", "more than 100 values"),
    ('""' * 300, "more than 100 values"), ("[" * 6, "more than 5 deep"), ('{"a":' * 6, "more than 5 deep"),
    ('["\\\\",[[[[[', "more than 5 deep")])
def test_json_is_bounded_in_values_and_depth_before_it_is_parsed(raw: str, why: str) -> None:
    for text in (raw, raw.encode()):
        with pytest.raises(ValueError, match=why):
            load_json(text, 100, 5)


@pytest.mark.parametrize("raw", [
    b'{"a":"' + b"[" * 1000 + b'"}', b'{"a":"\\"' + b"[{," * 1000 + b'"}',
    b'{"a":"' + b"9" * 5000 + b'"}', b'{"a":"1e999"}', b'["\\ud800", 1e300, 1e0300]', "[\"\ud800\"]"])
def test_what_stands_in_a_text_counts_for_nothing(raw: str | bytes) -> None:
    assert load_json(raw, 100, 5) == json.loads(raw)
