"""The lines of `follow`: changes are taken in, and what comes from pods is cut and shown as it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_given import entry, line, node_part, reported

from vmpin.errors import WireError
from vmpin.features.cluster.kube.reported_node import NOTHING


def test_changes_replace_and_remove_sandboxes() -> None:
    node = reported(entry("a"), entry("b"))
    assert set(node.sandboxes) == {"sandbox-a", "sandbox-b"}
    node = node.after(line("change", entry("b", verdict="degraded"), gone=("sandbox-a", "sandbox-x"), time=1001))
    assert {sandbox.id: sandbox.verdict for sandbox in node.sandboxes.values()} == {"sandbox-b": "degraded"}
    assert (node.time, node.node.version) == (1001.0, "0.1.0")
    node = node.after(line("change", node=node_part(ready=False, why="nri: down")))
    assert (node.node.ready, node.node.why, len(node.sandboxes)) == (False, "nri: down", 1)
    assert set(node.after(line("all", entry("c"), node=node_part())).sandboxes) == {"sandbox-c"}


def test_a_line_without_news_leaves_the_same_objects() -> None:
    node = reported(entry("a"))
    later = node.after(line("change", time=2000))
    assert (later.sandboxes is node.sandboxes, later.node is node.node, later.time) == (True, True, 2000.0)
    assert later.after(line("change", node=node_part())).node is node.node


def test_texts_of_pods_are_cut_and_steer_no_terminal() -> None:
    node = reported(entry("a", reasons=["x" * 5000, "\x1b[2J"] * 40, guest={"by": "", "state": "\u202e" * 9}))
    sandbox = node.sandboxes["sandbox-a"]
    assert len(sandbox.reasons) == 16
    assert len(sandbox.reasons[0]) == 512
    assert sandbox.reasons[1] == "\\x1b[2J"
    assert sandbox.guest.isprintable()


@pytest.mark.parametrize("raw", [
    b"", b"null", b"[]", b"{}", b"[" * 100_000, b'{"error":"follow: 8 clients follow already"}',
    json.dumps({"version": 2, "follow": "all"}).encode(), line("all", {"id": "x"}, node=node_part()),
    line("all", entry(misplaced="many"), node=node_part()), line("all", entry(), node={}),
    line("all", node=node_part(), time=9e11),  # beyond the year 9999, which no date holds
    line("all", entry(vcpus={"x": "1"}), node=node_part()), line("all", entry(pod=3), node=node_part()),
    *([line("all", *[entry(str(number)) for number in range(4097)], node=node_part())])])
def test_what_is_no_line_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        NOTHING.after(raw)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: (st.lists(inner, max_size=4)
                                   | st.dictionaries(st.text(max_size=8), inner, max_size=4)),
                    max_leaves=12)


@given(st.fixed_dictionaries({}, optional={key: JSON for key in entry()}))
def test_whatever_is_in_an_entry_it_is_taken_or_refused(changes: dict[str, object]) -> None:
    node = reported()
    try:
        node = node.after(json.dumps({"version": 1, "follow": "change", "time": 1.0, "gone": [],
                                        "sandboxes": [{**entry(), **changes}]}).encode())
    except WireError:
        return
    assert all(isinstance(sandbox.verdict, str) for sandbox in node.sandboxes.values())
