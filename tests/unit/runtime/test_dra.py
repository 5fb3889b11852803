"""The files of DRA claims: CDI specs as dra-driver-cpu writes them, and the kubelet's checkpoint of claims."""

from __future__ import annotations

import contextlib
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.errors import SourceError
from vmpin.runtime.dra import parse_claim_pods, parse_spec

UID = "6d7b0e04-44a7-4a3f-9f5e-0f3d3c1f9a10"


def spec(env: object, kind: object = "dra.k8s.io/cpu") -> bytes:
    return json.dumps({"cdiVersion": "0.8.0", "kind": kind,
                       "devices": [{"name": f"claim-{UID}", "containerEdits": {"env": env}}]}).encode()


def checkpoint(claims: object, checksum: int | None = None, key: str = "ClaimInfoStateList") -> bytes:
    data = json.dumps({"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", key: claims})
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode()) if checksum is None else checksum}).encode()


def test_a_spec_has_the_cpus_of_its_claim() -> None:
    assert parse_spec(spec([f"DRA_CPUSET_{UID}=2-3,6"]), "a") == {UID: CpuSet([2, 3, 6])}


def test_a_claim_of_several_devices_has_the_cpus_of_all() -> None:
    two = {"kind": "dra.k8s.io/cpu", "devices": [
        {"name": cpus, "containerEdits": {"env": [f"DRA_CPUSET_{UID}={cpus}"]}} for cpus in ("2-3", "6")]}
    assert parse_spec(json.dumps(two).encode(), "a") == {UID: CpuSet([2, 3, 6])}


@pytest.mark.parametrize("raw", [
    spec([f"DRA_CPUSET_{UID}=2"], kind="vendor.com/gpu"), spec(["PATH=/bin", "DRA_CPUSET_=1", 7]), spec(None),
    spec({}),
    b'{"kind": "dra.k8s.io/cpu"}', b'{"kind": "dra.k8s.io/cpu", "devices": [1, {}, {"containerEdits": []}]}',
    spec(["DRA_CPUSET_../x=1"]), spec([f"DRA_CPUSET_{UID}=1\n"]),
])
def test_other_specs_and_other_variables_have_no_claim(raw: bytes) -> None:
    assert parse_spec(raw, "a") == {}


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", spec([f"DRA_CPUSET_{UID}=3-1"]),
                                 spec([f"DRA_CPUSET_{UID}=0-99999999"])])
def test_a_spec_that_cannot_be_read_names_its_file(raw: bytes) -> None:
    with pytest.raises(SourceError, match="spec-a"):
        parse_spec(raw, "spec-a")


def test_the_checkpoint_has_the_pods_of_each_claim() -> None:
    claims = [{"ClaimUID": UID, "ClaimName": "c", "Namespace": "d", "PodUIDs": {"pod-1": {}, "pod-2": {}},
               "DriverState": {"dra.cpu": {"Devices": []}}}, {"ClaimUID": "other", "PodUIDs": {}}]
    assert parse_claim_pods(checkpoint(claims)) == {UID: frozenset({"pod-1", "pod-2"}), "other": frozenset()}
    assert parse_claim_pods(checkpoint(None)) == {}


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"Data": 1}', checkpoint([], checksum=1), checkpoint([{}]),
                                 checkpoint([], key="Claims"), checkpoint("c1"),
                                 checkpoint([7]), checkpoint([{"ClaimUID": "../x"}])])
def test_a_checkpoint_that_cannot_be_read_is_an_error(raw: bytes) -> None:
    with pytest.raises(SourceError, match="dra_manager_state"):
        parse_claim_pods(raw)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["kind", "devices", "containerEdits", "env", "ClaimUID", "PodUIDs"]), inner,
                        max_size=4), max_leaves=20)


@given(JSON)
def test_whatever_json_is_there_is_read_or_refused(document: object) -> None:
    with contextlib.suppress(SourceError):
        parse_spec(json.dumps(document).encode(), "a")
    with contextlib.suppress(SourceError):
        parse_claim_pods(checkpoint(document))
