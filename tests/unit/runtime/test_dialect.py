"""What a pod's author may write into annotations, under each runtime: a hook's state changes no sandbox but its own.

The annotations are merged as the runtimes do it: the author's first and the runtime's own after them, except in the
config of CRI-O's pause container, where the author's come last (server/sandbox_run_linux.go).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.domain.counters import Counters
from vmpin.domain.desired_state import DesiredState, reduce
from vmpin.domain.events import ContainerSeen, Event, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId
from vmpin.errors import SourceError
from vmpin.host.procfs import Procfs
from vmpin.runtime.dialect import CONTAINERD, CRIO, KATA_BUNDLE, bundle_id, dialect_of
from vmpin.runtime.kata import parse_go
from vmpin.runtime.oci import parse_hook
from vmpin.sources.hook_state import events_of
from vmpin.sources.nri.nri_events import ContainerEvent, NriContainer, NriPod, Synced
from vmpin.sources.nri.processes import NriProcesses
from vmpin.sources.nri.translation import events_of as nri_events
from vmpin.wire.nri_enums import Verb

PROC = Procfs()
OWN, CID, VICTIM, THEIRS = (SandboxId("5a" * 32), ContainerId("c1" * 32), SandboxId("bb" * 32),
                            ContainerId("b1" * 32))
POD, OTHER = Pod("shop", "web-0", "uid-1"), Pod("bank", "db-0", "uid-2")
TASKS = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
OVERLAY = "/run/containers/storage/overlay-containers"
KEY = "vmpin/exclusive"


def containerd(kind: str, name: str = "") -> dict[str, str]:
    """As containerd writes them (internal/cri/annotations), after those of the pod that it lets through."""
    found = {"container-type": kind, "sandbox-id": OWN, "sandbox-name": POD.name, "sandbox-namespace": POD.namespace,
             "sandbox-uid": POD.uid} | ({"container-name": name} if name else {})
    return {f"io.kubernetes.cri.{key}": value for key, value in found.items()}


def crio(kind: str, identity: str, name: str = "") -> dict[str, str]:
    """As CRI-O writes them, the kubelet's labels last."""
    return {"io.kubernetes.cri-o.ContainerType": kind, "io.kubernetes.cri-o.ContainerID": identity,
            "io.kubernetes.cri-o.SandboxID": OWN, "io.kubernetes.pod.name": POD.name,
            "io.kubernetes.pod.namespace": POD.namespace, "io.kubernetes.pod.uid": POD.uid,
            **({"io.kubernetes.container.name": name} if name else {})}


@dataclass(frozen=True)
class Met:
    """A state as a runtime gives it: its annotations hold the author's where the runtime lets them stand."""

    what: str
    id: str
    bundle: str
    own: Mapping[str, str]
    stage: str = "createRuntime"
    pause: bool = False

    def message(self, author: Mapping[str, str], time: int = 50) -> bytes:
        last = self.pause and self.bundle.endswith("/userdata")
        merged = {**self.own, **author} if last else {**author, **self.own}
        state = {"ociVersion": "1.0.2", "id": self.id, "bundle": self.bundle, "annotations": merged}
        return b"vmpin-hook/1 stage=%b boot=%d\n%b" % (self.stage.encode(), time, json.dumps(state).encode())


MET = [
    Met("containerd with runc", CID, f"{TASKS}/{CID}", containerd("container", "app")),
    Met("containerd with runc, its end", CID, f"{TASKS}/{CID}", containerd("container", "app"), "poststop"),
    Met("containerd with Kata's Go runtime", OWN, f"{TASKS}/{CID}", containerd("container", "app"), "poststart"),
    Met("containerd with Kata's Go runtime, its end", OWN, f"{TASKS}/{CID}", containerd("container", "app"),
        "poststop"),
    Met("containerd's pause", OWN, f"{TASKS}/{OWN}", containerd("sandbox"), pause=True),
    Met("CRI-O with runc", CID, f"{OVERLAY}/{CID}/userdata", crio("container", CID, "app")),
    Met("CRI-O with runc, its end", CID, f"{OVERLAY}/{CID}/userdata", crio("container", CID, "app"), "poststop"),
    Met("CRI-O with Kata's Go runtime", OWN, f"{OVERLAY}/{CID}/userdata", crio("container", CID, "app"), "poststart"),
    Met("CRI-O with Kata's Go runtime, its end", OWN, f"{OVERLAY}/{CID}/userdata", crio("container", CID, "app"),
        "poststop"),
    Met("CRI-O's pause", OWN, f"{OVERLAY}/{OWN}/userdata", crio("sandbox", OWN), pause=True),
]
#: Of each the one of a container's creation.
CREATED = [met for met in MET if met.stage != "poststop" and not met.pause]


def after(events: list[Event], state: DesiredState) -> DesiredState:
    for event in events:
        state = reduce(state, event)
    return state


def victim(nri: bool) -> DesiredState:
    """A node with another pod's sandbox, and this one's pod, known by NRI or by hooks alone."""
    runtime, source = ("nri", Source.NRI) if nri else ("oci", Source.BUNDLE)
    return after([SandboxSeen(VICTIM, runtime, OTHER),
                  ContainerSeen(VICTIM, Container(THEIRS, "db", CpuSet.parse("4-5")), source, 10),
                  SandboxSeen(OWN, "nri", POD)], DesiredState())


#: What the author of one pod may try, each value where it could do harm.
AUTHOR = st.dictionaries(
    st.sampled_from([*CONTAINERD[1:], *CRIO[1:], "io.kubernetes.cri-o.ContainerID", KATA_BUNDLE, KEY])
    | st.text(max_size=20),
    st.sampled_from([VICTIM, THEIRS, OWN, CID, "container", "sandbox", "podsandbox", "", "db", "bank", "db-0", "uid-2",
                     "true", "false", "../x", f"{OVERLAY}/{THEIRS}/userdata"]) | st.text(max_size=20))


@given(st.sampled_from(MET), AUTHOR, st.booleans())
def test_whatever_the_author_writes_a_state_changes_no_sandbox_but_its_own(
        met: Met, author: dict[str, str], nri: bool) -> None:
    before = victim(nri)
    try:
        events = events_of(parse_hook(met.message(author)), before, PROC, KEY)
    except SourceError:
        return
    found = after(events, before)
    assert {event.sandbox for event in events} <= {OWN}
    assert found.sandboxes[VICTIM] is before.sandboxes[VICTIM]
    assert found.sandboxes.keys() == {OWN, VICTIM}
    assert found.sandboxes[OWN].pod == POD
    for known in found.sandboxes[OWN].containers.values():
        assert known.container.id == (OWN if met.pause else CID)
        assert known.container.pause is met.pause
        assert known.container.name == ("" if met.pause or met.stage == "poststop" else "app")
        assert known.container.cpuset is None


@given(st.sampled_from(CREATED), AUTHOR)
def test_a_pod_is_named_by_its_runtime_alone(met: Met, author: dict[str, str]) -> None:
    """Where no NRI names it: by its uid the kubelet's checkpoint is read."""
    try:
        events = events_of(parse_hook(met.message(author)), DesiredState(), PROC, KEY)
    except SourceError:
        return
    assert [(event.sandbox, event.pod) for event in events if isinstance(event, SandboxSeen)] == [(OWN, POD)]
    assert [(event.sandbox, event.container.id, event.container.name, event.container.pause)
            for event in events if isinstance(event, ContainerSeen)] == [(OWN, CID, "app", False)]


@given(st.sampled_from(["crio", "containerd"]), AUTHOR, AUTHOR)
def test_katas_file_names_a_pod_as_its_runtime_does(runtime: str, of_pod: dict[str, str],
                                                    of_container: dict[str, str]) -> None:
    """persist.json holds the annotations of the specs; Kata adds the bundle's path after them."""
    if runtime == "crio":
        pause = {**crio("sandbox", OWN), **of_pod, KATA_BUNDLE: f"{OVERLAY}/{OWN}/userdata"}
        own = {**of_container, **crio("container", CID, "app"), KATA_BUNDLE: f"{OVERLAY}/{CID}/userdata"}
    else:
        pause = {**of_pod, **containerd("sandbox"), KATA_BUNDLE: f"{TASKS}/{OWN}"}
        own = {**of_container, **containerd("container", "app"), KATA_BUNDLE: f"{TASKS}/{CID}"}
    raw = json.dumps({"Config": {"ContainerConfigs": [
        {"ID": OWN, "Annotations": pause}, {"ID": CID, "Annotations": own,
                                            "Resources": {"cpu": {"cpus": "2-3"}}}]}}).encode()
    found = parse_go(OWN, raw, 1)
    assert found.pod == POD
    assert found.containers is not None
    assert [(each.id, each.pause) for each in found.containers] == [(OWN, True), (CID, False)]
    assert found.containers[1].name == "app"


# --- each attempt by itself ------------------------------------------------------------------------------------------

CRI_OF_VICTIM = {"io.kubernetes.cri.sandbox-id": VICTIM, "io.kubernetes.cri.sandbox-uid": OTHER.uid,
                 "io.kubernetes.cri.sandbox-name": OTHER.name, "io.kubernetes.cri.sandbox-namespace": OTHER.namespace,
                 "io.kubernetes.cri.container-name": "db", "io.kubernetes.cri.container-type": "container"}
CRIO_OF_VICTIM = {"io.kubernetes.cri-o.SandboxID": VICTIM, "io.kubernetes.cri-o.ContainerID": THEIRS,
                  "io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.pod.uid": OTHER.uid,
                  "io.kubernetes.pod.name": OTHER.name, "io.kubernetes.pod.namespace": OTHER.namespace,
                  "io.kubernetes.container.name": "db"}


@pytest.mark.parametrize("met", [met for met in MET if not met.pause], ids=lambda met: met.what)
@pytest.mark.parametrize("author", [CRI_OF_VICTIM, CRIO_OF_VICTIM], ids=["cri", "cri-o"])
def test_two_families_that_name_different_sandboxes_are_refused(met: Met, author: dict[str, str]) -> None:
    """The runtime's own keys stand; those of the other family do, too, and give the author away."""
    own = (author is CRI_OF_VICTIM and met.bundle.startswith(TASKS)) or (
        author is CRIO_OF_VICTIM and met.bundle.startswith(OVERLAY))
    if own:
        assert parse_hook(met.message(author)).sandbox == OWN
        return
    with pytest.raises(SourceError, match="name two sandboxes") as caught:
        parse_hook(met.message(author))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("met", CREATED, ids=lambda met: met.what)
def test_what_the_author_says_of_the_pod_is_reported_and_counts_for_nothing(
        met: Met, caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    theirs = CRI_OF_VICTIM if met.bundle.startswith(OVERLAY) else CRIO_OF_VICTIM
    author = {key: value for key, value in theirs.items() if value != VICTIM}
    with caplog.at_level(logging.WARNING):
        events = events_of(parse_hook(met.message(author)), DesiredState(), PROC, KEY, counters)
    (seen,) = (event for event in events if isinstance(event, SandboxSeen))
    assert (seen.sandbox, seen.pod) == (OWN, POD)
    assert (counters.disputed, counters.disputed_by) == (1, {OWN: 1})
    assert "annotations ignored" in caplog.text
    assert ("container-name" if met.bundle.startswith(OVERLAY) else "container.name") in caplog.text


@pytest.mark.parametrize("author", [
    {"io.kubernetes.cri-o.SandboxID": VICTIM},
    {"io.kubernetes.cri-o.ContainerType": "sandbox", "io.kubernetes.cri-o.SandboxID": VICTIM}])
def test_the_config_of_crios_pause_container_names_no_other_sandbox(author: dict[str, str]) -> None:
    """CRI-O runs no hook for it; should another program, the id counts."""
    pause = next(met for met in MET if met.what == "CRI-O's pause")
    with pytest.raises(SourceError, match="is a sandbox by its state"):
        parse_hook(pause.message(author))
    # Called a container, and of the victim: it is known to be a sandbox.
    known = victim(nri=True)
    counters = Counters()
    events = events_of(parse_hook(pause.message(CRIO_OF_VICTIM)), known, PROC, KEY, counters)
    found = after(events, known)
    assert found.sandboxes[VICTIM] is known.sandboxes[VICTIM]
    assert found.sandboxes[OWN].pod == POD
    assert [each.container.pause for each in found.sandboxes[OWN].containers.values()] == [True]
    assert counters.disputed == 1


def test_nri_and_katas_state_outrank_an_annotation() -> None:
    """A state that says otherwise of a container that they have is no reason to move it."""
    for source, runtime in ((Source.NRI, "nri"), (Source.KATA, "kata-go")):
        known = after([SandboxSeen(OWN, runtime, POD),
                       ContainerSeen(OWN, Container(CID, "app", CpuSet.parse("2")), source, 10)], victim(nri=False))
        counters = Counters()
        forged = Met("forged", CID, f"{TASKS}/{CID}", {**containerd("container", "app"),
                                                      "io.kubernetes.cri.sandbox-id": VICTIM})
        found = after(events_of(parse_hook(forged.message({})), known, PROC, KEY, counters), known)
        assert found.sandboxes[VICTIM] is known.sandboxes[VICTIM]
        assert found.sandboxes[OWN].containers.keys() == {CID}
        assert (counters.disputed, counters.disputed_by) == (1, {OWN: 1})


# --- NRI heals -------------------------------------------------------------------------------------------------------

def nri_container(identity: str, pod: SandboxId) -> NriContainer:
    return NriContainer(ContainerId(identity), pod, "app", 3, CpuSet.parse("2"), {}, 0)


PODS = (NriPod(OWN, POD.name, POD.namespace, POD.uid, "", 0, {}, ""),
        NriPod(VICTIM, OTHER.name, OTHER.namespace, OTHER.uid, "", 0, {}, ""))


def fooled() -> DesiredState:
    """As a watcher of before left it: a container and a pause container are in the victim's sandbox, and so is a pod
    of that name."""
    return after([SandboxSeen(VICTIM, "oci", POD), SandboxSeen(OWN, "oci", OTHER),
                  ContainerSeen(VICTIM, Container(THEIRS, "db", CpuSet.parse("4-5")), Source.BUNDLE, 10),
                  ContainerSeen(VICTIM, Container(CID, "app", CpuSet.parse("0-7")), Source.BUNDLE, 10),
                  ContainerSeen(VICTIM, Container(ContainerId(OWN), pause=False), Source.BUNDLE, 10)], DesiredState())


def test_what_nri_lists_is_in_no_other_sandbox() -> None:
    listed = Synced(PODS, (nri_container(CID, OWN), nri_container(THEIRS, VICTIM)), 20)
    found = after(nri_events(listed, fooled(), NriProcesses(PROC), KEY), fooled())
    assert {name: (sandbox.pod, set(sandbox.containers)) for name, sandbox in found.sandboxes.items()} == {
        OWN: (POD, {CID}), VICTIM: (OTHER, {THEIRS})}


def test_one_event_of_nris_heals_its_container() -> None:
    event = ContainerEvent(Verb.POST_UPDATE, PODS[0], nri_container(CID, OWN), 20)
    found = after(nri_events(event, fooled(), NriProcesses(PROC), KEY), fooled())
    assert CID not in found.sandboxes[VICTIM].containers
    assert found.sandboxes[OWN].containers.keys() == {CID}


def test_a_pod_that_nri_named_is_not_renamed_by_annotations() -> None:
    known = after([SandboxSeen(OWN, "nri", POD), SandboxSeen(OWN, "oci", OTHER), SandboxSeen(OWN, "kata-go", OTHER),
                   ContainerSeen(OWN, Container(CID, "app"), Source.NRI, 10),
                   ContainerSeen(OWN, Container(CID, "db"), Source.BUNDLE, 11)], DesiredState())
    assert known.sandboxes[OWN].pod == POD
    assert known.sandboxes[OWN].containers[CID].container.name == "app"
    renamed = reduce(known, SandboxSeen(OWN, "nri", OTHER))
    assert renamed.sandboxes[OWN].pod == OTHER


# --- paths -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("bundle", "family", "identity"), [
    (f"{TASKS}/{CID}", CONTAINERD, CID), (f"{TASKS}/{CID}/", CONTAINERD, CID), ("", CONTAINERD, ""),
    (f"{OVERLAY}/{CID}/userdata", CRIO, CID), (f"{OVERLAY}/{CID}/userdata/", CRIO, CID),
    ("/b/userdatax", CONTAINERD, "userdatax"), ("/userdata", CRIO, "")])
def test_the_family_is_decided_by_the_bundles_path(bundle: str, family: object, identity: str) -> None:
    assert dialect_of(bundle) is family
    assert bundle_id(bundle) == identity


def test_an_annotation_makes_no_cpuset(tmp_path: Path) -> None:
    """What it may say is whether the CPUs that the container was given are its own."""
    bundle = tmp_path / CID
    bundle.mkdir()
    author = {KEY: "true", "cpus": "0-7", "io.kubernetes.cri.sandbox-cpu-shares": "9"}
    (bundle / "config.json").write_text(json.dumps({"annotations": author, "linux": {"resources": {"cpu": {
        "cpus": "2"}}}}))
    met = Met("containerd", CID, str(bundle), containerd("container", "app"))
    (seen,) = (event for event in events_of(parse_hook(met.message(author)), DesiredState(), PROC, KEY)
               if isinstance(event, ContainerSeen))
    assert (seen.container.cpuset, seen.container.exclusive) == (CpuSet.parse("2"), True)
