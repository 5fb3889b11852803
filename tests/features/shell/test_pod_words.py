"""What completes the name of a pod or container."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.features.shell.pod_words import completions
from vmpin.status.pod_arguments import NamedSandbox, PodMatch, matches_of

SHOP = NamedSandbox("5f2c" + "0" * 60, "demo", "shop", [("aa11", "web"), ("bb22", "db")])
OTHER = NamedSandbox("77aa" + "0" * 60, "prod", "shop", [("cc33", "web")])
LONG = NamedSandbox("5f2d" + "0" * 60, "demo", "shop-7d9f-x2z", [("dd44", "web")])
NAMED = NamedSandbox("99", "web", "web", [("ee55", "shop")])
BARE = NamedSandbox("pod-a", containers=[("pod-a", "")])  # the pause container has its sandbox's id
REFUSED = NamedSandbox("last/main", "last", "main", [("last/main/web", "web")])  # of which no id is known
TWICE = NamedSandbox("main/last", "main", "last", [("main/last/web", "web")]), NamedSandbox(
    "8" * 64, "last", "main", [("9" * 64, "last")])
ALL = (SHOP, OTHER, LONG, NAMED, BARE)


@pytest.mark.parametrize(("text", "namespace", "containers", "found"), [
    ("", "", False, ["demo/shop", "pod-a", "prod/shop", "shop-7d9f-x2z", "web"]),
    ("", "demo", False, ["shop", "shop-7d9f-x2z"]), ("", "none", False, []),
    ("demo", "", False, ["demo/shop", "demo/shop-7d9f-x2z"]), ("shop", "", False, ["shop-7d9f-x2z"]),
    ("5f2", "", False, ["5f2c00000000", "5f2d00000000"]), ("5f2c" + "0" * 20, "", False, [SHOP.id]),
    ("po", "", False, ["pod-a"]), ("shop/", "", True, ["shop/db"]),
    ("demo/shop/", "", True, ["demo/shop/db", "demo/shop/web"]),
    ("shop/d", "demo", True, ["shop/db"]), ("shop/d", "", True, ["shop/db"]), ("zzz", "", True, [])])
def test_what_may_be_typed_next(text: str, namespace: str, containers: bool, found: list[str]) -> None:
    assert completions(text, namespace, ALL, containers) == found


def test_a_name_is_no_id_of_which_a_part_completes() -> None:
    assert completions("", "", [REFUSED]) == completions("m", "", [REFUSED]) == ["main"]
    assert completions("la", "", [REFUSED]) == ["last/main"]
    assert completions("/", "", [REFUSED]) == []
    assert completions("main/la", "", TWICE) == [], "a pod, and a container"


_NAMES = st.sampled_from(("a", "b", "ab", "a-b", ""))
_SANDBOXES = st.lists(st.builds(
    NamedSandbox, st.text("0123456789ef", min_size=64, max_size=64), _NAMES.filter(bool), _NAMES,
    st.lists(st.tuples(st.text("0123456789", min_size=64, max_size=64), _NAMES), max_size=2)),
    max_size=5, unique_by=lambda each: each.id)


@given(_SANDBOXES, st.sampled_from(("", "a", "a/", "a/b", "b", "0", "a/a/")), st.sampled_from(("", "a")),
       st.booleans())
def test_what_may_be_typed_next_means_one_thing(among: list[NamedSandbox], text: str, namespace: str,
                                                containers: bool) -> None:
    for name in completions(text, namespace, among, containers):
        assert name.startswith(text)
        assert len(matches_of(name, namespace, among)) == 1
    if not text:
        named = [matches_of(name, namespace, among)[0] for name in completions("", namespace, among)]
        assert sorted(named) == sorted(PodMatch(each) for each in among if namespace in ("", each.namespace))
