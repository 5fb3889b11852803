"""Parses the files in which a node has its claims for CPUs (DRA): the CDI specs of kubernetes-sigs/dra-driver-cpu with
the CPUs of each claim, and the kubelet's checkpoint with the pods of each claim.

Only root can write either. The environment of a container (DRA_CPUSET_…) is not read: a pod's author can write that.
Sources: dra-driver-cpu pkg/driver/cdi.go, driver.go; k8s.io/dynamic-resource-allocation kubeletplugin/draplugin.go;
kubelet pkg/kubelet/cm/dra/state/checkpoint.go (v1). Pure.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping

from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.domain.model import valid_id
from vmpin.errors import SourceError
from vmpin.runtime.documents import dig, parse_object, strings

#: The kind of device in the driver's CDI specs, and how the names of their files begin; v0.1.0 has one
#: file for all claims.
KIND, SPEC_PREFIXES = "dra.k8s.io/cpu", ("dra.k8s.io-cpu", "dra.cpu.json")
#: Below the kubelet's directory: its checkpoint, and the socket by which the driver is registered with it.
CHECKPOINT, REGISTRATION = "dra_manager_state", "plugins_registry/dra.cpu-reg.sock"
MAX_SPEC_BYTES = 1 << 20  #: One claim has 300 bytes, and v0.1.0 has thousands of them in one file.
MAX_CHECKPOINT_BYTES = 4 << 20
_VARIABLE = r"DRA_CPUSET_([A-Za-z0-9.-]{1,128})=([0-9,-]{1,65536})"


def parse_spec(raw: bytes, where: str) -> dict[str, CpuSet]:
    """Parse a CDI spec. :returns: the CPUs of each claim in it, by claim uid; none for a spec of another kind.
    :raises SourceError: it is no spec, or has an invalid CPU list."""
    document = parse_object(raw, where)
    if document.get("kind") != KIND:
        return {}
    claims: dict[str, CpuSet] = {}
    try:
        for entry in _environment(document):
            if (match := re.fullmatch(_VARIABLE, entry)) is not None:  # a claim may have several devices
                claims[match[1]] = claims.get(match[1], EMPTY) | CpuSet.parse(match[2])
    except CpuSetError as err:
        raise SourceError(where, str(err)) from err
    return claims


def _environment(document: Mapping[str, object]) -> Iterator[str]:
    """The variables that a spec's devices bring."""
    devices = document.get("devices")
    for device in devices if isinstance(devices, list) else ():
        yield from strings(dig(device, "containerEdits", "env"))


def parse_claim_pods(raw: bytes, where: str = CHECKPOINT) -> dict[str, frozenset[str]]:
    """Parse the kubelet's checkpoint. :returns: the uids of the pods that each claim is prepared for, by claim uid.
    :raises SourceError: it is in another format, or its checksum does not match."""
    outer = parse_object(raw, where)
    data = outer.get("Data")
    if not isinstance(data, str):
        raise SourceError(where, "has no Data")
    if zlib.crc32(data.encode("utf-8", "surrogatepass")) != outer.get("Checksum"):
        raise SourceError(where, "its checksum does not match")
    claims = parse_object(data, where).get("ClaimInfoStateList", "")
    if not isinstance(claims, list | None):  # null without claims
        raise SourceError(where, "has no list of claims")
    pods = {}
    for claim in claims or ():
        uid, uids = (claim.get("ClaimUID"), claim.get("PodUIDs")) if isinstance(claim, dict) else (None, None)
        if not valid_id(uid):
            raise SourceError(where, "has a claim without a uid")
        pods[str(uid)] = frozenset(pod for pod in (uids if isinstance(uids, dict | list) else ()) if valid_id(pod))
    return pods
