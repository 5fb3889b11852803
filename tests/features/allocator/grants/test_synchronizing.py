"""What proves a container's CPUs when the ledger is lost or spoilt: cpusets, annotations, the ledger's own text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from played_calls import EXCLUSIVE, MACHINE, ON, Played, a_container, cpus, listed

from vmpin.cpuset import EMPTY
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.features.allocator.grants.cpu_request import CpuPolicy
from vmpin.features.allocator.grants.decisions import on_create, on_remove
from vmpin.features.allocator.grants.ledger import Answer, Ledger
from vmpin.features.allocator.grants.synchronizing import on_synchronize
from vmpin.features.allocator.texts.grant_data import GRANT_KEY, LedgerError, annotation_of, from_data, to_data


def claim(name: str, size: int, text: str, cpuset: str | None) -> RequestedContainer:
    return a_container(name, size, annotations={}, cpuset=None if cpuset is None else cpus(cpuset),
                       state=ContainerState.RUNNING)._replace(annotations={GRANT_KEY: text})


FORGED = '{"v":1,"policy":"exclusive","since":0,"cpus":"%s"}'


@pytest.mark.parametrize(("forged", "words"), [
    (claim("evil", 2, FORGED % "2-3", "0-7"), "another container's"),
    (claim("evil", 0, FORGED % "4-5", "4-5"), "request = limit"),
    (claim("evil", 1, FORGED % "0", "0"), "reserved"),
    (claim("evil", 2, '{"v":1,"policy":"infra","since":0}', "0"), "privileged_namespaces"),
    (claim("evil", 2, FORGED % "2-3", "2-3"), "another container's"),
    (claim("evil", 2, "{", "4-5"), GRANT_KEY), (claim("evil", 2, "[" * 4000, "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":2}', "4-5"), GRANT_KEY), (claim("evil", 2, "x" * 5000, "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"exclusive","since":true}', "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"exclusive","cpus":[1]}', "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"exclusive","cpus":"5-1"}', "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"best"}', "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"none","wish":{"smt":1}}', "4-5"), GRANT_KEY),
])
def test_a_forged_annotation_gives_no_cpus(forged: RequestedContainer, words: str) -> None:
    """A container with CPUs of its own, and one whose author wrote the annotation; the ledger is lost."""
    honest = claim("a", 2, FORGED % "2-3", "2-3")._replace(sandbox=SandboxId("honest"))
    answer = on_synchronize(MACHINE, listed(honest, forged), None, ON)
    assert answer.ledger.grants[honest.id].cpus == cpus("2-3")
    assert not answer.ledger.grants[forged.id].cpus
    assert any(words in note for note in answer.notes), answer.notes
    assert answer.updates == ()


def test_without_a_cpuset_the_annotation_is_no_proof() -> None:
    answer = on_synchronize(MACHINE, listed(claim("evil", 2, FORGED % "2-3", None)), None, ON)
    grant = answer.ledger.grants[ContainerId("evil")]
    assert (grant.policy, str(grant.written)) == (CpuPolicy.NONE, "0-7")


def test_after_a_resize_the_cpuset_proves_the_cpus() -> None:
    answer = on_synchronize(MACHINE, listed(claim("a", 3, FORGED % "2-3", "2-4")), None, ON)
    assert answer.ledger.grants[ContainerId("a")].cpus == cpus("2-4")
    assert answer.updates == ()


def test_what_a_shared_container_runs_on_was_a_vms_spare_cpu() -> None:
    """A VM that grew from CPUs 2-3 to 2-4, with the spare CPU 1; the annotation is of its creation."""
    vm = claim("a", 3, '{"v":1,"policy":"exclusive","since":0,"cpus":"2-3","spare":"4"}', "1-4")._replace(
        vm=True, vm_vcpus=1)
    web = claim("web", 0, '{"v":1,"policy":"none","since":0}', "0-1,5-7")
    answer = on_synchronize(MACHINE, listed(vm, web), None, ON)
    assert (answer.ledger.grants[vm.id].cpus, answer.ledger.grants[vm.id].spare) == (cpus("2-4"), cpus("1"))
    assert answer.updates == ()


def test_what_was_missed_gets_its_cpus_and_the_shared_ones_lose_them_first() -> None:
    node = Played()
    node.create("web")
    web = a_container("web", cpuset=cpus("0-7"), state=ContainerState.RUNNING)
    new = a_container("a", 2, EXCLUSIVE, state=ContainerState.RUNNING)
    node.ledger = on_synchronize(MACHINE, listed(web, new), node.ledger, ON).ledger
    assert node.ledger.grants[ContainerId("a")].cpus == cpus("2-3")
    answer = on_synchronize(MACHINE, listed(web, new), None, ON)
    assert [update.container for update in answer.updates] == ["a"], "without annotation web's cpuset is another's"


def test_what_was_missed_keeps_its_cpus_when_the_ledger_is_lost_too() -> None:
    """It has no annotation of vmpin's: as many CPUs as it asks for are its own all the same."""
    missed = a_container("a", 2, EXCLUSIVE, cpuset=cpus("4-5"), state=ContainerState.RUNNING)
    fewer = a_container("b", 2, EXCLUSIVE, cpuset=cpus("6"), state=ContainerState.RUNNING)
    twin = a_container("c", 2, EXCLUSIVE, cpuset=cpus("5-6"), state=ContainerState.RUNNING)
    answer = on_synchronize(MACHINE, listed(missed, fewer, twin), None, ON)
    grants = answer.ledger.grants
    assert (grants[missed.id].cpus, grants[missed.id].left_alone) == (cpus("4-5"), False)
    assert [(grants[one.id].cpus, grants[one.id].left_alone) for one in (fewer, twin)] == [(EMPTY, True)] * 2
    assert answer.updates == ()
    # With a ledger in which it is not, its cpuset is another plugin's.
    later = on_synchronize(MACHINE, listed(missed), Ledger(), ON)
    assert later.ledger.grants[missed.id].left_alone


def some_ledger() -> dict[str, Any]:
    node = Played()
    node.create("web")
    node.create("a", 2, {**EXCLUSIVE, "cpu-align.vmpin.io": "node!"}, vm=True, vm_vcpus=1)
    node.create("b", 9, EXCLUSIVE)
    data: dict[str, Any] = json.loads(json.dumps(to_data(node.ledger)))
    assert from_data(data) == node.ledger
    return data


@pytest.mark.parametrize(("place", "value", "words"), [
    (("version",), 2, "version=2"), (("shared",), "9-1", "shared"), (("shared",), None, "shared"),
    (("grants",), {}, "grants={}"), (("refused",), 1, "refused=1"), (("extra",), 1, "extra"),
    (("grants", 0), 1, "grant 0"), (("grants", 0, "policy"), "best", "grant 0: policy: 'best'"),
    (("grants", 0, "state"), None, "grant 0: state"), (("grants", 0, "cpus"), 5, "grant 0: cpus"),
    (("grants", 0, "amount"), [1, 2], "amount=[1, 2]"), (("grants", 0, "vm"), 1, "vm=1"),
    (("grants", 0, "vm_vcpus"), -1, "vm_vcpus=-1"), (("grants", 0, "since_ns"), True, "since_ns=True"),
    (("grants", 0, "container"), "", "container is missing"), (("grants", 0, "node"), "0", "node='0'"),
    (("grants", 0, "wish"), {"smt": "x"}, "wish: smt=x"), (("grants", 0, "wish"), [], "a wish is an object"),
    (("grants", 0, "wish"), {"exclude_reserved": 1}, "exclude_reserved=1"),
    (("grants", 0, "colour"), 1, "colour"), (("grants", 1, "container"), "a", "two grants"),
    (("grants", 1, "cpus"), "2", "CPU 2 is held by"), (("refused", 0), {"pod": 1}, "refused request 0"),
])
def test_a_bad_ledger_is_an_error_that_names_the_place(place: tuple[str | int, ...], value: object,
                                                       words: str) -> None:
    data: Any = some_ledger()
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(LedgerError) as caught:
        from_data(data)
    assert words in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "x", 1])
def test_what_is_no_object_is_no_ledger(data: object) -> None:
    with pytest.raises(LedgerError):
        from_data(data)


def of_one_name(number: int, state: ContainerState, since: int, cpuset: str = "2-3") -> RequestedContainer:
    """A container of name main in one pod, whose annotation has these CPUs."""
    text = f'{{"v":1,"policy":"exclusive","since":{since},"cpus":"{cpuset}"}}'
    return claim("main", len(cpus(cpuset)), text, cpuset)._replace(id=ContainerId(f"main-{number}"), state=state)


@pytest.mark.parametrize("states", [("created", "running"), ("created", "created"), ("running", "running")])
def test_of_one_pod_and_name_the_newest_that_runs_keeps_its_cpus(states: tuple[str, str]) -> None:
    """containerd lists one that could not be started until the kubelet removes it; the next one has its CPUs."""
    old, new = (of_one_name(at, ContainerState(state), at) for at, state in enumerate(states))
    node = Played()
    node.ledger = on_synchronize(MACHINE, listed(old, new), None, ON).ledger
    assert (node.ledger.grants[new.id].cpus, node.ledger.grants[new.id].left_alone) == (cpus("2-3"), False)
    node.call(on_remove, old.id)
    assert node.create("other", 5, EXCLUSIVE) == "1,4-7"
    assert node.create("more", 1, EXCLUSIVE) is None


def test_one_that_runs_comes_before_one_that_was_created_of_whatever_age_and_pod() -> None:
    created = of_one_name(1, ContainerState.CREATED, 9)
    runs = of_one_name(2, ContainerState.RUNNING, 5)._replace(sandbox=SandboxId("other"), name="side")
    resized = of_one_name(3, ContainerState.RUNNING, 3, "2-4")._replace(sandbox=SandboxId("third"))
    resized = resized._replace(annotations={GRANT_KEY: FORGED % "2"})
    assert on_synchronize(MACHINE, listed(created, runs), None, ON).ledger.grants[runs.id].cpus == cpus("2-3")
    assert on_synchronize(MACHINE, listed(created, resized), None, ON).ledger.grants[resized.id].cpus == cpus("2-4")


def test_of_two_that_were_missed_the_one_that_runs_gets_the_cpus() -> None:
    old = a_container("old", 5, EXCLUSIVE, time_ns=1, state=ContainerState.CREATED)
    new = a_container("new", 5, EXCLUSIVE, time_ns=2, state=ContainerState.RUNNING)
    grants = on_synchronize(MACHINE, listed(old, new), Ledger(), ON).ledger.grants
    assert grants[new.id].cpus == cpus("1,4-7")


def test_a_pod_that_the_list_lacks_keeps_the_cpus_of_its_containers_that_run() -> None:
    node = Played()
    node.create("a", 2, EXCLUSIVE)
    runs = a_container("a", 2, cpuset=cpus("2-3"), state=ContainerState.RUNNING)
    answer = on_synchronize(MACHINE, Listed(frozenset(), (runs,)), node.ledger, ON)
    assert answer.ledger.grants[runs.id].cpus == cpus("2-3")
    assert not on_synchronize(MACHINE, Listed(frozenset(), ()), answer.ledger, ON).ledger.grants


def test_a_resize_that_was_missed_with_the_ledger_is_taken_in() -> None:
    """The kubelet's update has no cpuset: what runs has the CPUs of its creation, and requests others."""
    more, fewer = claim("more", 3, FORGED % "2-3", "2-3"), claim("fewer", 1, FORGED % "4-5", "4-5")
    grants = on_synchronize(MACHINE, listed(more, fewer), None, ON).ledger.grants
    assert (str(grants[more.id].cpus), str(grants[fewer.id].cpus)) == ("1-3", "4")
    most = claim("more", 5, FORGED % "2-3", "2-3")
    answer = on_synchronize(MACHINE, listed(most, claim("three", 3, FORGED % "4-6", "4-6")), None, ON)
    assert answer.ledger.grants[most.id].cpus == cpus("2-3"), "it keeps what it runs on"
    assert [one.container for one in answer.ledger.refused] == ["more"]
    only = claim("only", 2, '{"v":1,"policy":"group","since":0,"cpus":"3-6","wish":{"policy":"group:g"}}', "3-6")
    assert on_synchronize(MACHINE, listed(only), None, ON).ledger.grants[only.id].cpus == cpus("4-5"), "a whole core"
    # Such a claim comes after those that agree with their requests.
    forged, honest = claim("a", 1, FORGED % "2-3", "2-3"), claim("b", 2, FORGED % "2-3", "2-3")
    assert on_synchronize(MACHINE, listed(forged, honest), None, ON).ledger.grants[honest.id].cpus == cpus("2-3")


@pytest.mark.parametrize("lost", [False, True])
def test_of_resizes_that_were_missed_those_that_give_cpus_back_come_first(lost: bool) -> None:
    """A found history: the older container needs what the younger one gives back. The list again changes nothing."""
    node = Played()
    node.create("more", 1, EXCLUSIVE, time_ns=1)
    node.create("fewer", 5, EXCLUSIVE, time_ns=2)
    had = {key: (grant.written, annotation_of(grant)) for key, grant in node.ledger.grants.items()}
    resized = [a_container(name, size, EXCLUSIVE, cpuset=had[ContainerId(name)][0], state=ContainerState.RUNNING,
                           time_ns=at)._replace(annotations={GRANT_KEY: had[ContainerId(name)][1]})
               for at, (name, size) in enumerate({"more": 3, "fewer": 1}.items(), start=1)]
    answer = on_synchronize(MACHINE, listed(*resized), None if lost else node.ledger, ON)
    grants = answer.ledger.grants
    assert {key: len(grant.cpus) for key, grant in grants.items()} == {"more": 3, "fewer": 1}
    assert not answer.ledger.refused
    again = [one._replace(cpuset=grants[one.id].written) for one in resized]
    assert on_synchronize(MACHINE, listed(*again), answer.ledger, ON) == Answer(answer.ledger)


@pytest.mark.parametrize("fixed_in_vm", [False, True])
def test_a_vm_whose_resize_was_missed_takes_no_spare_cpu_that_is_anothers_own(fixed_in_vm: bool) -> None:
    """A found history: the VM has one CPU and a spare one, which is not that of its creation, and requests two."""
    vm = claim("vm", 2, '{"v":1,"policy":"exclusive","since":1,"cpus":"1","spare":"3"}', "1-2")._replace(
        vm=True, vm_vcpus=1)
    spare = ',"spare":"4"' if fixed_in_vm else ""
    fixed = claim("fixed", 1, f'{{"v":1,"policy":"fixed","since":2,"cpus":"2"{spare}}}',
                  "2,4" if fixed_in_vm else "2")._replace(
        state=ContainerState.CREATED, vm=fixed_in_vm, vm_vcpus=1 if fixed_in_vm else None)
    grants = on_synchronize(MACHINE, listed(vm, fixed), None, ON).ledger.grants
    assert (str(grants[fixed.id].cpus), grants[fixed.id].left_alone) == ("2", False)
    assert len(grants[vm.id].cpus) == 2
    assert cpus("1") <= grants[vm.id].cpus <= cpus("1,3-7")


def test_a_container_on_the_whole_pool_has_no_cpus_of_its_own() -> None:
    """One was refused its CPUs, as the pool must keep one, and there are as many in it as it asked for."""
    own = claim("a", 2, FORGED % "2-3", "2-3")
    pooled = a_container("b", 5, EXCLUSIVE, cpuset=cpus("1,4-7"), state=ContainerState.RUNNING)
    strict = ON._replace(strict_reserved=True)
    answer = on_synchronize(MACHINE, listed(own, pooled), None, strict)
    grant = answer.ledger.grants[pooled.id]
    assert (grant.policy, grant.left_alone, grant.cpus, answer.updates) == (CpuPolicy.NONE, False, EMPTY, ())
    assert answer.ledger.shared == cpus("1,4-7")


def test_cpus_to_which_another_program_restricts_a_container_become_no_others_own() -> None:
    node = Played()
    node.create("web")
    node.call(on_create, a_container("theirs", 2, cpuset=cpus("2-3")))
    node.call(on_create, a_container("part", 1, cpuset=cpus("4-5")))
    node.call(on_create, a_container("all", 1, cpuset=cpus("0-7")))
    assert node.create("a", 1, EXCLUSIVE) == "1"
    assert node.create("b", 3, EXCLUSIVE) is None
    assert "2 are free" in node.refusal
    assert node.create("c", 2, EXCLUSIVE) == "6-7"


def test_one_that_was_missed_gets_no_cpus_on_which_a_container_is_left_alone() -> None:
    """Resized to what has no CPUs of its own, while vmpin and its ledger were away."""
    early = a_container("a", 2, EXCLUSIVE, state=ContainerState.RUNNING)
    left = a_container("b", 0, EXCLUSIVE, cpuset=cpus("2-3"), state=ContainerState.RUNNING)
    grown = claim("c", 3, FORGED % "4-5", "4-5")
    grants = on_synchronize(MACHINE, listed(early, left, grown), None, ON).ledger.grants
    assert (grants[left.id].left_alone, str(grants[grown.id].cpus)) == (True, "4-6")
    assert (str(grants[early.id].cpus), grants[early.id].policy) == ("1,7", CpuPolicy.EXCLUSIVE)


def test_one_that_is_refused_after_its_creation_goes_to_the_pool() -> None:
    """Without a cpuset it would run on all CPUs, those that are others' own too."""
    node = Played()
    node.create("web")
    node.create("a", 3, EXCLUSIVE)
    known = [a_container("web", cpuset=node.ledger.shared), a_container("a", 3, EXCLUSIVE, cpuset=cpus("1-3"))]
    wrong = {"cpu-policy.vmpin.io": "nonsense"}
    many, broken, infra = (a_container(name, 5, annotations) for name, annotations in (
        ("many", EXCLUSIVE), ("broken", wrong), ("infra", {"cpu-policy.vmpin.io": "infra"})))
    answer = on_synchronize(MACHINE, listed(*known, many, broken, infra), node.ledger, ON)
    assert {(update.container, str(update.cpus)) for update in answer.updates} == {
        ("many", "0,4-7"), ("broken", "0,4-7"), ("infra", "0,4-7")}
    assert [(one.container, one.reason.partition("(")[2]) for one in answer.ledger.refused] == [
        (name, "created while vmpin was away: it is on the pool)") for name in ("broken", "infra", "many")]
    again = listed(*known, *(one._replace(cpuset=cpus("0,4-7")) for one in (many, broken, infra)))
    assert on_synchronize(MACHINE, again, answer.ledger, ON) == Answer(answer.ledger)


@pytest.mark.parametrize(("others", "own", "spare"), [(0, "1", "2-3"), (1, "2", "4-5"), (3, "4", "6-7")])
def test_a_lost_ledger_moves_no_spare_set_of_a_vm_with_a_container_on_the_pool(
        others: int, own: str, spare: str) -> None:
    """Kata made vCPUs for that container, too, and it has no cpuset that would prove a grant."""
    node = Played()
    vm: dict[str, Any] = {"sandbox": SandboxId("vm"), "vm": True, "vm_vcpus": 1}
    if others:
        node.create("others", others, EXCLUSIVE)
    node.create("pooled", 1, **vm, time_ns=1)
    node.create("own", 1, EXCLUSIVE, **vm, time_ns=2)
    grants = node.ledger.grants
    assert (str(grants[ContainerId("own")].cpus), str(grants[ContainerId("own")].spare)) == (own, spare)
    containers = [a_container(
        grant.container, grant.amount.size, {} if grant.container == "pooled" else EXCLUSIVE, sandbox=grant.sandbox,
        vm=grant.vm, vm_vcpus=grant.vm_vcpus, state=ContainerState.RUNNING, cpuset=grant.written or None,
        )._replace(annotations={GRANT_KEY: annotation_of(grant)}) for grant in grants.values()]
    answer = on_synchronize(MACHINE, listed(*containers), None, ON)
    assert answer.updates == ()
    assert answer.ledger.grants[ContainerId("own")].spare == cpus(spare)
