"""Which sandboxes a listing shows: patterns of names, a namespace, problems with the worst first."""

from __future__ import annotations

from typing import Any

import pytest

from vmpin.domain.terminal import REMOTE
from vmpin.status.selection import Selection, is_pattern


def sandbox(name: str, verdict: str = "pinned", ok: bool = True, **more: Any) -> dict[str, Any]:
    namespace, _, pod = name.rpartition("/")
    return {"id": name, "pod": {"namespace": namespace, "name": pod} if namespace else None, "verdict": verdict,
            "vmm": {"type": "qemu", "pid": 1}, "reasons": [], "threads": [{"ok": ok}], **more}


def document(*sandboxes: dict[str, Any], **node: Any) -> dict[str, Any]:
    return {"sandboxes": list(sandboxes), "node": {"collisions": [], "disagreements": [], "impostors": [], **node}}


def ids(selection: Selection, of: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in selection.of(of)]


@pytest.mark.parametrize(("pattern", "namespace", "names"), [
    ("", "", ["demo/db", "demo/web-1", "shop/web-2", "77aa"]), ("demo/*", "", ["demo/db", "demo/web-1"]),
    ("web-*", "", ["demo/web-1", "shop/web-2"]), ("*/web-[2-9]", "", ["shop/web-2"]),
    ("web-?", "shop", ["shop/web-2"]),
    ("", "demo", ["demo/db", "demo/web-1"]), ("", "dem", []), ("DEMO/*", "", []), ("77*", "", ["77aa"]),
    ("*", "", ["demo/db", "demo/web-1", "shop/web-2", "77aa"])])
def test_names_are_matched_whole_as_a_shell_does(pattern: str, namespace: str, names: list[str]) -> None:
    node = document(*map(sandbox, ("demo/db", "demo/web-1", "shop/web-2", "77aa")))
    assert ids(Selection(pattern, namespace), node) == names


def test_problems_are_those_that_someone_should_look_at_the_worst_first() -> None:
    node = document(
        sandbox("a/remark", reasons=["housekeeping: no such CPU can be used"]), sandbox("a/good"),
        sandbox("a/unpinned", "off", reasons=["unpinned by hand"]), sandbox("a/floating", "floating"),
        sandbox("a/peer", "off", vmm=None, reasons=[REMOTE]),
        sandbox("b/unmanaged", "unmanaged", reasons=["no pool"]), sandbox("b/waiting", "waiting"),
        sandbox("b/no-vmm", "off", vmm=None, reasons=["no VMM runs"]), sandbox("c/degraded", "degraded"),
        sandbox("c/misplaced", "pinned", ok=False), sandbox("c/collides"), sandbox("c/disputed"), sandbox("c/posed"),
        sandbox("c/rival"), collisions=[{"sandboxes": ["c/collides", "runc"]}], rivals=[{"sandboxes": ["c/rival"]}],
        disagreements=[{"sandbox": "c/disputed"}], impostors=[{"sandbox": "c/posed"}])
    assert ids(Selection(problems=True), node) == [
        "c/degraded", "c/misplaced", "c/collides", "c/disputed", "c/posed", "c/rival",
        "b/unmanaged", "b/waiting", "b/no-vmm", "a/remark"]
    assert ids(Selection("", "b", problems=True), node) == ["b/unmanaged", "b/waiting", "b/no-vmm"]


def test_a_selection_says_what_it_chose() -> None:
    assert Selection("w*", "shop", problems=True).describe() == "named 'w*' in namespace 'shop' with a problem"
    assert [is_pattern(text) for text in ("demo/*", "a?", "[ab]c")] == [True] * 3
    assert [is_pattern(text) for text in ("shop", "", "\x1b[2J", "a]b[")] == [False] * 4
