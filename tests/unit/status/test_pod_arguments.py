"""Which sandbox or container an argument names."""

from __future__ import annotations

import pytest

from vmpin.errors import UsageError
from vmpin.status.pod_arguments import NamedSandbox, joined, matches_of, only_match

SHOP = NamedSandbox("5f2c" + "0" * 60, "demo", "shop", [("aa11", "web"), ("bb22", "db")])
OTHER = NamedSandbox("77aa" + "0" * 60, "prod", "shop", [("cc33", "web")])
LONG = NamedSandbox("5f2d" + "0" * 60, "demo", "shop-7d9f-x2z", [("dd44", "web")])
NAMED = NamedSandbox("99", "web", "web", [("ee55", "shop")])
BARE = NamedSandbox("pod-a", containers=[("pod-a", "")])  # the pause container has its sandbox's id
REFUSED = NamedSandbox("last/pod", "last", "pod", [("last/pod/web", "web")])  # of which no id is known
ALL = (SHOP, OTHER, LONG, NAMED, BARE, REFUSED)


@pytest.mark.parametrize(("text", "namespace", "found"), [
    ("5f2c", "", ["demo/shop"]), ("5f2", "", ["demo/shop", "demo/shop-7d9f-x2z"]),
    ("shop", "", ["demo/shop", "prod/shop"]),
    ("shop", "demo", ["demo/shop"]), ("shop-7", "", []),
    ("demo/shop", "", ["demo/shop"]), ("demo/shop", "demo", ["demo/shop"]), ("demo/shop", "prod", []),
    ("demo/shop-", "", []), ("shop-7d9f-x2z", "", ["demo/shop-7d9f-x2z"]),
    ("shop/web", "", ["demo/shop/web", "prod/shop/web"]), ("shop/web", "demo", ["demo/shop/web"]),
    ("shop/db", "", ["demo/shop/db"]), ("shop-7d9f/web", "", []),
    ("demo/shop/web", "", ["demo/shop/web"]), ("demo/shop/none", "", []), ("demo/shop/web/more", "", []),
    ("web", "", ["web/web"]), ("web/web", "", ["web/web"]), ("web/shop", "", ["web/web/shop"]),
    ("aa11", "", ["demo/shop/web"]), ("e", "", ["web/web/shop"]),
    ("pod-a", "", ["pod-a"]), ("pod-", "", ["pod-a"]), ("", "", []), ("/", "", []), ("demo/", "", []),
    ("/shop", "", []), ("shop", "none", []),
    ("pod", "last", ["last/pod"]), ("last/pod", "", ["last/pod"]), ("last/pod/web", "", ["last/pod/web"]),
    ("last", "", []), ("last/po", "", []), ("last/pod/we", "", []),
])
def test_what_an_argument_may_mean(text: str, namespace: str, found: list[str]) -> None:
    assert [each.title for each in matches_of(text, namespace, ALL)] == found


def test_a_container_is_meant_by_its_id() -> None:
    one = only_match("demo/shop/db", "", ALL)
    assert (one.sandbox, one.container) == (SHOP, "bb22")


def test_several_are_listed_as_they_can_be_typed() -> None:
    with pytest.raises(UsageError, match="'shop' may be demo/shop, prod/shop"):
        only_match("shop", "", ALL)
    again = SHOP._replace(id="6e" * 32)  # a pod whose sandbox is created again
    with pytest.raises(UsageError, match=r"may be demo/shop \(5f2c00000000\d?\), demo/shop \(6e6e6e6e6e6e\w?\)"):
        only_match("demo/shop", "", (SHOP, again))
    many = [NamedSandbox(f"a{number:063x}", "demo", f"web-{number}") for number in range(1, 100)]
    with pytest.raises(UsageError, match="web-8 and 91 more"):
        only_match("a", "", many)


def test_pods_whose_id_is_their_name_are_those_of_that_name() -> None:
    again, of_ledger = SHOP._replace(id="6e" * 32), NAMED._replace(containers=[])
    refused = NamedSandbox("demo/shop", "demo", "shop", [("demo/shop/web", "web"), ("demo/shop/new", "new")])
    new = ("demo/shop/new", "new")
    assert joined([SHOP, NAMED], [again, of_ledger, refused, REFUSED]) == [
        again._replace(containers=[*SHOP.containers, new]), NAMED, REFUSED,
        SHOP._replace(containers=[*SHOP.containers, new])]


def test_none_names_what_was_sought() -> None:
    with pytest.raises(UsageError, match="no VM sandbox 'x' is on this node in namespace 'demo'") as refused:
        only_match("x", "demo", ALL)
    assert refused.value.hint == "`vmpin status` lists them"
    with pytest.raises(UsageError, match="no VM sandbox 'shop-7' is on this node") as refused:
        only_match("shop-7", "", ALL)
    assert refused.value.hint == "did you mean demo/shop-7d9f-x2z? `vmpin status` lists them"


def test_names_from_outside_do_not_steer_a_terminal() -> None:
    with pytest.raises(UsageError) as refused:
        only_match("1", "", [NamedSandbox("11", "n", "a\x1b[2J"), NamedSandbox("12", "n", "ab")])
    assert "\x1b" not in str(refused.value)
    with pytest.raises(UsageError) as refused:
        only_match("a", "", [NamedSandbox("11", "n", "a\x1b[2J")])
    assert "\x1b" not in refused.value.hint
