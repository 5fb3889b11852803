"""The authority `dra`: where dra-driver-cpu is registered with the kubelet or has prepared claims, its claims decide
on every container, by its CDI specs.

A claim's CPUs belong to the pod for which the kubelet prepared it, and in the pod to the container whose cpuset the
driver set to them. All other containers share the driver's shared CPUs. While no container uses a prepared claim, it
belongs to the pod as a whole. Without claims no container owns CPUs: containers that share have different cpusets,
because the driver does not widen those of running ones when it releases a claim (unprepareResourceClaim).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from operator import is_not
from pathlib import Path

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.assignments import Assignments, Owner, Rank
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.model import uid_of
from vmpin.errors import SourceError
from vmpin.host.files import Stamp, lasting_stamp, read_regular, stamp
from vmpin.runtime.dra import (
    CHECKPOINT,
    MAX_CHECKPOINT_BYTES,
    MAX_SPEC_BYTES,
    REGISTRATION,
    SPEC_PREFIXES,
    parse_claim_pods,
    parse_spec,
)

MAX_CLAIMS = 4096  #: The most claims that are read.

#: The CPUs of each claim, by claim uid.
Claims = Mapping[str, CpuSet]
#: The pods (uids) of each claim; None if the kubelet's checkpoint is unreadable.
ClaimPods = Mapping[str, frozenset[str]] | None


def assignments_of(claims: Claims, pods: ClaimPods, state: DesiredState,
                   registered: bool = False) -> Assignments | None:
    """The assignments by the claims; None without claims and a registered driver. A claim that the kubelet does not
    have has been left behind: the kubelet writes its checkpoint before the driver prepares a claim
    (pkg/kubelet/cm/dra/manager.go). If the claims' pods are unknown, a container owns the claims in its cpuset if that
    has no other CPUs: the driver never adds shared ones."""
    if pods is not None:
        claims = {claim: cpus for claim, cpus in claims.items() if claim in pods}
    if not claims and not registered:
        return None
    claimed = union(claims.values())
    exclusive: dict[Owner, CpuSet] = {}
    shared, used = EMPTY, set[str]()
    for sandbox in state.sandboxes.values():
        uid = uid_of(sandbox.pod)
        for container in sandbox.live():
            cpuset = container.cpuset or EMPTY
            owned = [] if cpuset.isdisjoint(claimed) else [
                claim for claim, cpus in claims.items()
                if not cpuset.isdisjoint(cpus) and (pods is None or uid in pods[claim])]
            if owned and (pods is not None or cpuset <= claimed):
                exclusive["", container.id] = union(claims[claim] for claim in owned)
                used.update(owned)
            else:
                shared |= cpuset - claimed
    for claim in claims.keys() - used:
        owners = () if pods is None else pods[claim]
        for owner in owners or (f"claim-{claim}",):
            exclusive[owner, ""] = exclusive.get((owner, ""), EMPTY) | claims[claim]
    return Assignments(exclusive, shared or None, complete=True)


class DraAuthority:
    """By the claims in the directory `cdi` (/var/run/cdi), and their pods in the checkpoint in `kubelet`
    (/var/lib/kubelet), where the driver's socket shows that it is registered, if it accepts connections. If a spec
    becomes unusable, its last contents stay in force. Those of the checkpoint do not: they would lack the claims
    prepared since.
    :param warn: called with a line for each new trouble."""

    rank = Rank.DRA

    def __init__(self, cdi: Path, kubelet: Path, warn: Callable[[str], None]) -> None:
        self.cdi, self.checkpoint, self.registration = cdi, kubelet / CHECKPOINT, kubelet / REGISTRATION
        self.warn = warn
        self.registered = False
        self.claims: Claims = {}
        self.pods: ClaimPods = None
        self._directory: Stamp | None = None
        self._socket: Stamp | None = None
        self._specs: dict[str, tuple[Stamp, Claims]] = {}
        self._unread = False  #: Whether a spec could not be read, and is to be read again.
        self._checkpoint: Stamp | None = None
        #: The trouble with files now: by name of a spec, by path of another one.
        self._warned: dict[str, str] = {}
        self._input: tuple[DesiredState, Claims, ClaimPods, bool] | None = None
        self._assignments: Assignments | None = None

    @property
    def rules(self) -> bool:
        """Whether the driver is registered, or there are claims."""
        return self.registered or bool(self.claims)

    def assignments(self, state: DesiredState) -> Assignments | None:
        """The assignments by the claims as read last."""
        now = state, self.claims, self.pods, self.registered
        if self._input is None or any(map(is_not, now, self._input)):
            self._input = now
            assignments = assignments_of(self.claims, self.pods, state, self.registered)
            if assignments != self._assignments:
                self._assignments = assignments
        return self._assignments

    def read(self, resync: bool = False) -> bool:
        """Read changed files. Without claims and a driver, the common case, this takes two stats.
        :param resync: also connect to an unchanged socket: a driver that is killed leaves it behind.
        :returns: whether claims, pods or the registration changed."""
        before = self.claims, self.pods, self.registered
        self._read_specs()
        self._read_registration(resync)
        if self.claims:
            self._read_checkpoint()
        return before != (self.claims, self.pods, self.registered)

    def _read_registration(self, resync: bool) -> None:
        try:
            info = os.stat(self.registration)
        except OSError:
            self._socket, self.registered = None, False
            return
        if resync or stamp(info) != self._socket:
            from vmpin.host.listening import answers  # not at the top: most nodes have no driver

            # A driver that has just created its socket accepts no connections yet: a fresh one is tried again.
            self._socket, self.registered = lasting_stamp(info), answers(self.registration)

    def _read_specs(self) -> None:
        try:
            info = os.stat(self.cdi)
            if stamp(info) == self._directory:
                return
            names = sorted(name for name in os.listdir(self.cdi) if name.startswith(SPEC_PREFIXES))[:MAX_CLAIMS]
        except (FileNotFoundError, NotADirectoryError):
            if not self._specs and not self._warned:
                self._directory = None
                return  # as in each pass on most nodes
            names, info = [], None
        except OSError as err:
            self._note(str(self.cdi), f"{self.cdi}: {err.strerror}: the claims before are used")
            return
        # The directory's stamp changes whenever a file is created, removed or replaced, as the driver does.
        self._directory = None if info is None else lasting_stamp(info)
        for gone in self._warned.keys() - {*names, str(self.cdi), str(self.checkpoint)}:
            del self._warned[gone]
        self._specs = {name: spec for name in names if (spec := self._spec(name)) is not None}
        if self._unread:
            self._directory, self._unread = None, False
        self._note(str(self.cdi))
        claims = {claim: cpus for _, spec in self._specs.values() for claim, cpus in spec.items() if cpus}
        if claims != self.claims:
            self.claims = claims

    def _spec(self, name: str) -> tuple[Stamp, Claims] | None:
        path, before = self.cdi / name, self._specs.get(name)
        try:
            if before is not None and stamp(os.stat(path, follow_symlinks=False)) == before[0]:
                return before
            raw, info = read_regular(path, MAX_SPEC_BYTES)
            spec = lasting_stamp(info), parse_spec(raw, str(path))
        except FileNotFoundError:
            return None
        except OSError as err:
            self._unread = True
            self._note(name, f"{path}: {err.strerror}")
            return before
        except SourceError as err:
            self._note(name, str(err))
            return before
        self._note(name)
        return spec

    def _read_checkpoint(self) -> None:
        path = str(self.checkpoint)
        try:
            if stamp(os.stat(path, follow_symlinks=False)) == self._checkpoint:
                return
            raw, info = read_regular(path, MAX_CHECKPOINT_BYTES)
            self._checkpoint = lasting_stamp(info)
            pods = parse_claim_pods(raw, path)
        except FileNotFoundError:
            self._checkpoint = self.pods = None
            return
        except (OSError, SourceError) as err:
            self._note(path, f"{path}: {err.strerror}" if isinstance(err, OSError) else str(err))
            self.pods = None
            return
        self._note(path)
        if pods != self.pods:
            self.pods = pods

    def _note(self, subject: str, trouble: str = "") -> None:
        """Record the trouble with a file ("" for none), and warn of a new one."""
        if not trouble:
            self._warned.pop(subject, None)
        elif self._warned.get(subject) != trouble:
            self.warn(trouble)
            self._warned[subject] = trouble
