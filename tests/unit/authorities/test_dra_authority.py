"""The authority of DRA claims: CPUs by the driver's CDI specs, pods by the kubelet, containers by their cpusets."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest
from dra_socket import listening
from ruled import ruled

from vmpin.authorities.authority import GivenAuthority
from vmpin.authorities.dra_authority import DraAuthority, assignments_of
from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Rank
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId
from vmpin.placement.rulings import effective_containers


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def pod(name: str, **cpusets: str | None) -> SandboxState:
    """A pod with these containers, whose ids are their names."""
    return SandboxState(SandboxId(f"sandbox-{name}"), "nri", Pod("default", name, f"uid-{name}"), {
        ContainerId(key): ContainerRecord(
            Container(ContainerId(key), key, None if text is None else cpus(text)), Source.NRI, 1)
        for key, text in cpusets.items()})


def state_of(*pods: SandboxState) -> DesiredState:
    return DesiredState({sandbox.id: sandbox for sandbox in pods})


CLAIMS = {"c1": cpus("2-3"), "c2": cpus("4-5")}
PODS = {"c1": frozenset({"uid-web"}), "c2": frozenset({"uid-db"})}


@pytest.mark.parametrize(("pods", "sandboxes", "exclusive", "pool"), [
    (PODS, [pod("web", main="2-3"), pod("db", db="4-5"), pod("batch", job="0-1,6-7")],
     {("", "main"): "2-3", ("", "db"): "4-5"}, "0-1,6-7"),
    (None, [pod("web", main="2-3"), pod("db", db="4-5"), pod("batch", job="0-1,6-7")],
     {("", "main"): "2-3", ("", "db"): "4-5"}, "0-1,6-7"),
    # A container of the pod without a claim shares; an edited cpuset is rewritten to the claim's.
    (PODS, [pod("web", main="2", helper="0-1")], {("", "main"): "2-3", ("uid-db", ""): "4-5"}, "0-1"),
    # A claim prepared before its pod runs, and one whose container has ended.
    (PODS, [], {("uid-web", ""): "2-3", ("uid-db", ""): "4-5"}, None),
    (None, [], {("claim-c1", ""): "2-3", ("claim-c2", ""): "4-5"}, None),
    # Both claims in one container, and one claim in two containers.
    ({"c1": PODS["c1"], "c2": PODS["c1"]}, [pod("web", main="2-5")], {("", "main"): "2-5"}, None),
    (PODS, [pod("web", main="2-3", second="2-3"), pod("db", db="4-5")],
     {("", "main"): "2-3", ("", "second"): "2-3", ("", "db"): "4-5"}, None),
    # Another pod's cpuset does not make it an owner: it is stale.
    (PODS, [pod("batch", job="2-3")], {("uid-web", ""): "2-3", ("uid-db", ""): "4-5"}, None),
    (None, [pod("batch", job="0-7")], {("claim-c1", ""): "2-3", ("claim-c2", ""): "4-5"}, "0-1,6-7"),
    # A claim that the kubelet has for no pod (yet), and one that it does not have: left behind by the driver.
    ({"c1": frozenset()}, [pod("web", main="2-3"), pod("db", db="4-5")], {("claim-c1", ""): "2-3"}, "4-5"),
])
def test_the_claims_of_a_node_decide(pods: dict[str, frozenset[str]] | None, sandboxes: list[SandboxState],
                                     exclusive: dict[tuple[str, str], str], pool: str | None) -> None:
    assignments = assignments_of(CLAIMS, pods, state_of(*sandboxes))
    assert assignments is not None
    assert {owner: str(own) for owner, own in assignments.exclusive.items()} == exclusive
    assert (assignments.pool and str(assignments.pool), assignments.complete) == (pool, True)


def test_without_claims_it_does_not_rule() -> None:
    assert assignments_of({}, PODS, state_of(pod("web", main="2-3"))) is None


def test_where_the_driver_is_registered_no_container_owns_cpus_without_a_claim() -> None:
    """A container from when there was a claim for 1-2, and one created since: the driver shares 1-7."""
    assignments = assignments_of({}, PODS, state_of(pod("old", main="3-7"), pod("new", main="1-7")), registered=True)
    assert assignments is not None
    assert (assignments.exclusive, str(assignments.pool), assignments.complete) == ({}, "1-7", True)


def test_the_driver_is_registered_while_its_socket_is_there(tmp_path: Path) -> None:
    files = Files(tmp_path)
    path = files.kubelet / "plugins_registry/dra.cpu-reg.sock"
    path.parent.mkdir()
    with listening(path):
        assert (files.dra.read(), files.dra.rules, files.dra.read()) == (True, True, False)
        assert files.dra.assignments(state_of(pod("web", main="2-3"))) is not None
        path.unlink()
        assert (files.dra.read(), files.dra.rules, files.dra.read()) == (True, False, False)
        assert files.dra.assignments(state_of(pod("web", main="2-3"))) is None


def test_a_socket_that_a_killed_driver_left_is_no_registration_from_the_next_resync_on(tmp_path: Path) -> None:
    files = Files(tmp_path)
    path = files.kubelet / "plugins_registry/dra.cpu-reg.sock"
    path.parent.mkdir()
    with listening(path):
        at = path.stat().st_mtime - 1
        os.utime(path, (at, at))  # its stamp lasts
        assert (files.dra.read(), files.dra.registered, files.dra.read(resync=True)) == (True, True, False)
    assert path.exists()
    assert (files.dra.read(), files.dra.registered) == (False, True)  # between two resyncs nothing is connected to
    assert (files.dra.read(resync=True), files.dra.registered) == (True, False)
    path.unlink()
    with listening(path):  # the driver is there again
        assert (files.dra.read(), files.dra.registered) == (True, True)


def test_a_socket_that_does_not_listen_yet_is_tried_again(tmp_path: Path) -> None:
    files = Files(tmp_path)
    path = files.kubelet / "plugins_registry/dra.cpu-reg.sock"
    path.parent.mkdir()
    with listening(path, begin=False) as server:
        later = path.stat().st_mtime + 100
        os.utime(path, (later, later))  # it is fresh however long the test takes
        assert (files.dra.read(), files.dra.registered) == (False, False)
        server.listen()
        assert (files.dra.read(), files.dra.registered) == (True, True)


class Files:
    """The files of claims, in a directory of the test."""

    def __init__(self, path: Path) -> None:
        self.cdi, self.kubelet = path / "cdi", path / "kubelet"
        self.warnings: list[str] = []
        self.dra = DraAuthority(self.cdi, self.kubelet, self.warnings.append)
        self.kubelet.mkdir()

    def prepare(self, claim: str, cpuset: str) -> None:
        """As the driver does: a file beside, renamed."""
        self.cdi.mkdir(exist_ok=True)
        self.write_spec(claim, json.dumps({"kind": "dra.k8s.io/cpu", "devices": [
            {"name": f"claim-{claim}", "containerEdits": {"env": [f"DRA_CPUSET_{claim}={cpuset}"]}}]}))

    def write_spec(self, claim: str, text: str) -> None:
        (self.cdi / "new").write_text(text)
        (self.cdi / "new").rename(self.spec(claim))

    def spec(self, claim: str) -> Path:
        return self.cdi / f"dra.k8s.io-cpu_claim-{claim}.json"

    def list_pods(self, pods: dict[str, list[str]]) -> None:
        data = json.dumps({"ClaimInfoStateList": [{"ClaimUID": claim, "PodUIDs": {uid: {} for uid in uids}}
                                                  for claim, uids in pods.items()]})
        (self.kubelet / "new").write_text(json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}))
        (self.kubelet / "new").rename(self.kubelet / "dra_manager_state")


def test_claims_come_and_go_with_the_drivers_files(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert not files.dra.read()  # no directory
    files.prepare("c1", "2-3")
    assert files.dra.read()
    assert (files.dra.claims, files.dra.pods) == ({"c1": cpus("2-3")}, None)
    files.list_pods({"c1": ["uid-web"]})
    assert files.dra.read()
    assert files.dra.pods == {"c1": frozenset({"uid-web"})}
    assert not files.dra.read()
    files.prepare("c2", "4")
    (files.cdi / "vendor.com-gpu.json").write_text("{")  # another driver's
    assert files.dra.read()
    assert files.dra.claims == {"c1": cpus("2-3"), "c2": cpus("4")}
    files.spec("c1").unlink()
    files.spec("c2").unlink()
    assert files.dra.read()
    assert (files.dra.claims, files.warnings) == ({}, [])


def test_the_first_release_of_the_driver_has_all_claims_in_one_file(tmp_path: Path) -> None:
    """v0.1.0: pkg/driver/cdi.go, writeSpecToFile, which creates a file beside it first."""
    files = Files(tmp_path)
    files.cdi.mkdir()
    devices = [{"name": f"claim-{claim}", "containerEdits": {"env": [f"DRA_CPUSET_{claim}={given}"]}}
               for claim, given in (("c1", "2-3"), ("c2", "4"))]
    text = json.dumps({"cdiVersion": "0.8.0", "kind": "dra.k8s.io/cpu", "devices": devices, "containerEdits": {}})
    (files.cdi / "dra.cpu3141592").write_text(text)
    assert not files.dra.read()
    (files.cdi / "dra.cpu3141592").rename(files.cdi / "dra.cpu.json")
    assert files.dra.read()
    assert (files.dra.claims, files.warnings) == ({"c1": cpus("2-3"), "c2": cpus("4")}, [])


def test_a_bad_file_leaves_its_claim_as_it_was_and_is_reported_once(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.prepare("c1", "2-3")
    files.prepare("c2", "4-5")
    files.list_pods({"c1": ["uid-web"]})
    files.dra.read()
    files.write_spec("c1", "{")
    (files.kubelet / "dra_manager_state").write_text("{}")
    files.spec("c2").unlink()
    os.mkfifo(files.spec("c3"))
    for _ in range(3):
        files.dra.read()
    assert (files.dra.claims, files.dra.pods) == ({"c1": cpus("2-3")}, None)
    assert [warning.partition(":")[0].rpartition("/")[2] for warning in files.warnings] == [
        "dra.k8s.io-cpu_claim-c1.json", "dra.k8s.io-cpu_claim-c3.json", "dra_manager_state"]


def test_a_claim_since_the_checkpoint_became_unreadable_is_its_containers_own(tmp_path: Path) -> None:
    """A kubelet of a newer version writes another format: the last pods that were read lack the new claim."""
    files = Files(tmp_path)
    files.prepare("c1", "2-3")
    files.list_pods({"c1": ["uid-web"]})
    files.dra.read()
    files.prepare("c2", "4-5")
    (files.kubelet / "dra_manager_state").write_text("{}")
    files.dra.read()
    assignments = files.dra.assignments(state_of(
        pod("web", main="2-3"), pod("db", db="4-5"), pod("batch", job="0-1")))
    assert assignments is not None
    assert (assignments.exclusive, assignments.pool) == (
        {("", "main"): cpus("2-3"), ("", "db"): cpus("4-5")}, cpus("0-1"))


def test_a_spec_that_could_not_be_read_is_read_again(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.prepare("c1", "2-3")
    spec, elsewhere = files.spec("c1"), tmp_path / "spec"
    elsewhere.write_bytes(spec.read_bytes())
    spec.unlink()
    spec.symlink_to(elsewhere)  # not followed: ELOOP
    os.utime(files.cdi, ns=(1, 1))  # the directory has not changed for long
    assert not files.dra.read()
    stamp = os.stat(files.cdi)
    os.rename(elsewhere, spec)
    os.utime(files.cdi, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert files.dra.read()
    assert files.dra.claims == {"c1": cpus("2-3")}


def test_an_unchanged_decision_is_the_same_object(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.prepare("c1", "2-3")
    files.dra.read()
    first = files.dra.assignments(state_of(pod("web", main="2-3")))
    assert first is not None
    assert files.dra.assignments(state_of(pod("web", main="2-3"), pod("none"))) is first


def test_a_container_with_a_claim_owns_it_and_others_lose_it(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.prepare("c1", "2-3")
    files.list_pods({"c1": ["uid-web"]})
    files.dra.read()
    web, batch = pod("web", main="2-3", helper="0-1,4-7"), pod("batch", job="0-7")
    assignments = files.dra.assignments(state_of(web, batch))
    rulings = ruled(None, GivenAuthority(Rank.DRA, assignments))
    main, helper = effective_containers(web, rulings)
    assert (main.exclusive, str(main.own_cpus), main.ruled_by) == (True, "2-3", "dra")
    assert (helper.exclusive, str(helper.cpuset)) == (False, "0-1,4-7")
    (job,) = effective_containers(batch, rulings)
    assert (str(job.cpuset), str(job.stale_cpuset)) == ("0-1,4-7", "0-7")
