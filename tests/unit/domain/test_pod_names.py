"""Names of pods in sentences, and sentences by sandbox."""

from __future__ import annotations

from vmpin.domain.pod_names import by_sandbox, threads_of, with_names


def test_sentences_stand_below_their_sandboxes_titles_and_are_counted() -> None:
    a, b = "a" * 64, "b" * 64
    lines = [(b, f"sandbox {b}: set 1"), (a, f"sandbox {a}: set 2"), (b, f"leave it to {a}"), ("x", "set 3")]
    assert by_sandbox(lines, {a: "shop/web", b: "shop/db"}) == [
        "sandbox x:", "  set 3", "shop/db:", "  set 1", "  leave it to shop/web", "shop/web:", "  set 2"]
    assert threads_of([{"sandbox": a}, {"sandbox": b}, {"sandbox": a}]) == "3 threads of 2 sandboxes"


def test_a_pods_uid_is_replaced_by_its_name_also_of_a_static_pod() -> None:
    for uid in "53baed75-5ea8-359d-6f59-dbe134c71de4", "53baed755ea8359d6f59dbe134c71de4":
        assert with_names(f"exclusive to pod {uid}", {uid: "net/router"}) == "exclusive to pod net/router"
        assert with_names(f"pod {uid}", {}) == f"pod {uid}"


def test_names_of_containers_are_found_in_a_long_text_without_blanks() -> None:
    """If each character began a name, this text would take minutes."""
    web, long = "c" * 64, "0," * 200_000
    assert with_names(f"{long} web ({web}) and db ({web})", {web: "web"}) == f"{long} web and db (web)"
