"""nri-plugins' annotation: which interrupts a pod claims, and which of them it gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from effort import effort
from hypothesis import given
from hypothesis import strategies as st
from irq_tree import IrqTree
from irqs_part import DB, SHOP

from vmpin.cpuset import CpuSet
from vmpin.domain.contention import ContentionRules
from vmpin.domain.model import SandboxId
from vmpin.features.irqs.interrupt_table import InterruptTable
from vmpin.features.irqs.irq_claims import (
    KEY,
    PASSED,
    TAKEN,
    IrqClaim,
    Patterns,
    annotation_of,
    claims_by_irq,
    parse_claim,
)
from vmpin.features.irqs.irq_files import DEFAULT
from vmpin.features.irqs.irq_mover import FIXED, IrqMover, Moved, give_back
from vmpin.features.irqs.irq_plan import IrqRoom
from vmpin.features.irqs.originals_file import OriginalsFile

cpus = CpuSet.parse
NODES = {0: cpus("0-3"), 1: cpus("4-7")}


class Node:
    """A machine of 8 CPUs on which pods claim interrupts; `claims` are those of the oldest pods first."""

    def __init__(self, root: Path) -> None:
        self.tree, self.file, self.claims = IrqTree(root), OriginalsFile(root / "irqs.json", "boot"), list[IrqClaim]()
        self.start()

    def start(self) -> None:
        """Another watcher."""
        self.mover = IrqMover(self.tree.files, self.file, ContentionRules(), lambda: 0.0, list)

    def claim(self, sandbox: SandboxId, own: str, *patterns: str) -> None:
        self.claims.append(IrqClaim(sandbox, cpus(own), f"claim: {list(patterns)}"))

    def move(self, exclusive: str) -> Moved:
        table = InterruptTable((self.tree.root / "proc/interrupts").read_bytes())
        return self.mover.move(table.rows(), IrqRoom(cpus("0-7"), cpus(exclusive), cpus("0-7") - cpus(exclusive),
                                                  NODES), claims_by_irq(self.claims, table.descriptions()))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def outcome(moved: Moved) -> list[tuple[int, str, str, str]]:
    return [(claim.irq.number, claim.sandbox, str(claim.cpus), claim.why) for claim in moved.claims]


def test_a_claimed_interrupt_goes_on_the_claiming_containers_cpus_and_back_at_the_end(node: Node) -> None:
    node.tree.add(1, "eth0")
    node.tree.add(2, "nvme0q1")
    node.claim(SHOP, "2", "*eth0")
    assert outcome(node.move("2-3")) == [(1, SHOP, "2", "")]
    assert node.tree.masks() == {1: "2", 2: "0-1,4-7", DEFAULT: "0-1,4-7"}
    node.tree.set(1, "5")  # irqbalance, for example
    node.move("2-3")
    assert node.tree.masks()[1] == "2"
    node.claims = []
    node.move("2-3")
    assert node.tree.masks()[1] == "0-1,4-7"
    assert give_back(node.tree.files, node.file)
    assert set(node.tree.masks().values()) == {"0-7"}


def test_of_two_pods_the_one_that_has_an_interrupt_keeps_it_and_the_other_is_refused(node: Node) -> None:
    node.tree.add(1, "eth0")
    node.claim(SHOP, "2", "*")
    node.claim(DB, "3", "*")
    assert outcome(node.move("2-3")) == [(1, SHOP, "2", ""), (1, DB, "", TAKEN)]
    node.claims.reverse()
    node.start()
    assert outcome(node.move("2-3")) == [(1, DB, "", TAKEN), (1, SHOP, "2", "")], "after a restart, too"
    assert node.tree.masks()[1] == "2"
    node.claims.pop()
    assert outcome(node.move("3")) == [(1, DB, "3", "")]
    assert node.tree.masks()[1] == "3"


def test_containers_of_a_pod_share_an_interrupt(node: Node) -> None:
    node.tree.add(1, "eth0")
    node.claim(SHOP, "2", "*")
    node.claim(SHOP, "6", "1")
    assert outcome(node.move("2,6")) == [(1, SHOP, "2,6", "")]


def test_no_claim_takes_an_interrupt_off_its_node_or_from_a_vm_or_a_fixed_one(node: Node) -> None:
    node.tree.add(1, "eth0", node=1)
    node.tree.add(2, "vfio-msix[0](0000:3b:00.0)")
    node.tree.add(3, "nvme0q2", "2", fixed=True)
    node.tree.add(4, "eth1", node=0)
    node.tree.add(5, "arch_timer")
    node.claim(SHOP, "2,7", "*")
    assert outcome(node.move("2,7")) == [
        (1, SHOP, "7", ""), (2, SHOP, "", PASSED), (3, SHOP, "", FIXED), (4, SHOP, "2", "")]
    node.claims = [IrqClaim(SHOP, cpus("2"), "claim: ['*']")]
    assert outcome(node.move("2"))[0] == (1, SHOP, "", "none of its CPUs is on NUMA node 1")
    assert node.tree.masks() == {1: "4-7", 2: "0-1,3-7", 3: "2", 4: "2", 5: "0-7", DEFAULT: "0-1,3-7"}


@pytest.mark.parametrize(("text", "patterns"), [
    ("claim: ['*eth0 *', 12]\nmask: ['*']", (("*eth0 *", "12"), ())),
    ("claim:\n  - '*'\nmask: [ '*eth0 *' ]\nmode: claim-first\n", (("*",), ("*eth0 *",))),
    ('{"claim": ["*nvme*"], "mode": "mask-first", "other": 1}', (("*nvme*",), ())),
    *((text, ((), ())) for text in (
        "mask: ['*']", "claim: '*'", "claim: [[1]]", "claim: ['*']\nmode: x", "- '*'", "claim: ['*'", "", "[" * 4000,
        f"claim: {['x'] * 33}", f"claim: ['{'x' * 129}']", "claim: ['*'] #" + "x" * 5000))])
def test_an_annotation_is_a_claim_and_with_claim_first_the_mask_ends_it(
        text: str, patterns: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    assert parse_claim(text) == Patterns(*patterns)


def test_the_key_of_a_container_counts_before_those_of_the_pod() -> None:
    annotations = {KEY: "a", f"{KEY}/pod": "b", f"{KEY}/container.web": "c", f"{KEY}/container.x": "d"}
    assert [annotation_of(dict(list(annotations.items())[:count]), "web") for count in range(4)] == ["", "a", "b", "c"]


@pytest.mark.parametrize(("pattern", "text", "matches"), [
    ("*eth0*", "IR-PCI-MSIX-0000:3b:00.0 3-edge eth0-TxRx-3", True), ("*eth0", "x eth0-TxRx-3", False),
    ("*eth0 *", "x eth0 y", True), ("*", "a/b", False), ("*/*", "a/b", True), ("?b", "ab", True), ("?b", "/b", False),
    ("[a-c]x", "bx", True), ("[^a-c]x", "bx", False), ("[^a-c]x", "dx", True), ("[\\]]", "]", True),
    ("[]a]", "]", False), ("[a-]", "a", False), ("[-a]", "a", False), ("[a\\-]", "-", True), ("[", "[", False),
    ("\\*", "*", True), ("\\*", "a", False), ("a\\", "a\\", False), ("*-input.?", "virtio0-input.0", True),
    ("a*b*c", "axxbyyc", True), ("a*b*c", "axxbyy", False), ("**", "ab", True), ("", "", True), ("[z-a]", "b", False),
    ("(a|b).+", "ab", False)])
def test_patterns_match_as_in_go(pattern: str, text: str, matches: bool) -> None:
    assert Patterns((pattern,)).take(-7, text) == matches


def test_a_number_is_that_interrupt_alone() -> None:
    assert [Patterns(("12",)).take(number, "x 12 y") for number in (1, 12, 112)] == [False, True, False]


@given(st.text("*?[]^-\\/ab", max_size=128), st.text("ab/-", max_size=400))
def test_no_pattern_raises_and_none_matches_across_a_slash_by_a_star(pattern: str, text: str) -> None:
    matched = Patterns((pattern,)).take(1, text)
    if not set(pattern) & set("[]\\^-/"):
        simple = re.sub(r"\*+", "[^/]*", pattern).replace("?", "[^/]")
        assert len(text) > 12 or matched == (re.fullmatch(simple, text) is not None)


def test_matching_takes_no_longer_than_both_lengths_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not end, with every star free to end anywhere."""
    assert not Patterns(("*a" * 60 + "b",)).take(1, "a" * 400)


SETS = st.sets(st.integers(0, 7)).map(CpuSet)
PODS = [SandboxId(name) for name in ("a", "b", "c")]


@given(st.lists(st.tuples(st.integers(-1, 1), st.booleans()), min_size=4, max_size=4), st.lists(
    st.tuples(st.lists(SETS, min_size=3, max_size=3), st.permutations(PODS), st.sampled_from(["*", "1", "*dev[23]"]),
              st.booleans()), min_size=1, max_size=6))
def test_no_claim_moves_an_interrupt_onto_another_pods_cpus_or_off_its_node(
        tmp_path_factory: pytest.TempPathFactory, interrupts: list[tuple[int, bool]],
        steps: list[tuple[list[CpuSet], list[SandboxId], str, bool]]) -> None:
    node = Node(tmp_path_factory.mktemp("node"))
    for number, (near, passed) in enumerate(interrupts):
        node.tree.add(number, f"vfio-intx(0000:0{number}:00.0)" if passed else f"dev{number}", node=near)
    for sets, order, pattern, restart in steps:
        if restart:
            node.start()
        owned, left = dict[SandboxId, CpuSet](), cpus("0-7")
        for pod, wanted in zip(PODS, sets, strict=True):
            owned[pod] = wanted & left
            left -= owned[pod]
        exclusive = cpus("0-7") - left
        node.claims = [IrqClaim(pod, owned[pod], f"claim: ['{pattern}']") for pod in order if owned[pod]]
        moved = node.move(str(exclusive))
        granted = {claim.irq.number: claim for claim in moved.claims if not claim.why}
        for number, (near, passed) in enumerate(interrupts):
            mask = cpus(node.tree.masks()[number])
            claim = granted.get(number)
            allowed = left if claim is None else owned[claim.sandbox] & NODES.get(near, cpus("0-7"))
            assert mask
            assert mask <= allowed or not left
            assert claim is None or (not passed and mask == claim.cpus)
        assert cpus(node.tree.masks()[DEFAULT]).isdisjoint(exclusive) or not left
        assert {claim.irq.number for claim in moved.claims} == {*claims_by_irq(node.claims, descriptions(node))}
        assert node.move(str(exclusive)).due == ()
    assert give_back(node.tree.files, node.file)
    assert set(node.tree.masks().values()) == {"0-7"}


def descriptions(node: Node) -> dict[int, str]:
    return InterruptTable((node.tree.root / "proc/interrupts").read_bytes()).descriptions()


@pytest.mark.parametrize("text", [
    f"claim: {'[' * 2000}{']' * 2000}", "{" * 4096,
    "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(10)) + "claim: *a9\n"],
    ids=["lists", "maps", "aliases"])
def test_an_annotation_that_yaml_takes_long_for_is_not_parsed(text: str) -> None:
    assert parse_claim("claim: [x]").claim == ("x",)  # loads PyYAML
    assert effort(lambda: parse_claim(text), 1) < 10
    assert parse_claim(text) == Patterns()
