"""Translates a hook's state into events. Reads the bundle, and looks up the process with the reported pid."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from vmpin.domain.counters import Counters
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import ContainerSeen, ContainerStopped, Event, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, SandboxId
from vmpin.errors import SourceError
from vmpin.host import boottime
from vmpin.host.procfs import Procfs
from vmpin.named_tuple import NamedTuple
from vmpin.runtime.dialect import CRIO, bundle_id, declared_exclusive, name_of, pod_of
from vmpin.runtime.oci import HookState, bundle_gone, read_bundle
from vmpin.sources.pids import has_ended, owner_of

logger = logging.getLogger(__name__)

#: Stages whose hooks runc runs in the container's namespaces: its pid is then of that pid namespace (libcontainer:
#: rootfs_linux.go, prepareRootfs), and on the host another process has it. Kata's runtime-rs has its VMM's there.
_WITHIN = ("createContainer", "startContainer")


class _Membership(NamedTuple):
    """The sandbox and container of a state. `ignored` describes the annotation that contradicts them, "" for none."""

    sandbox: SandboxId
    container: ContainerId
    pause: bool
    ignored: str = ""


def events_of(hook: HookState, state: DesiredState, proc: Procfs, exclusive_annotation: str,
              counters: Counters | None = None) -> list[Event]:
    """The events for a hook's state. They concern only the container's own sandbox, even if the pod's author names
    another one in annotations.
    :param exclusive_annotation: the key by which a container declares its CPUs exclusive, "" for none.
    :param counters: to count ignored annotations (`disputed`).
    :raises OSError: if the bundle or the process cannot be read at the moment (`errors.passing`)."""
    member = _membership(hook, state)
    foreign = f"{', '.join(hook.foreign)}: not {hook.dialect.runtime}'s own" if hook.foreign else ""
    if ignored := member.ignored or foreign:
        logger.warning("contradicting annotations ignored container=%s sandbox=%s: the pod's author has %s",
                       member.container, member.sandbox, ignored)
        if counters is not None:
            counters.dispute(member.sandbox)
    when = began_at(hook)
    if hook.stopped:
        return [ContainerStopped(member.sandbox, member.container, when)]
    return list(_created(hook, member, when, proc, exclusive_annotation))


def began_at(hook: HookState) -> int:
    """When the hook began, in ns of CLOCK_BOOTTIME, however old the message is; now, for a time in the future."""
    return min(hook.time, boottime.now())


def _membership(hook: HookState, state: DesiredState) -> _Membership:
    """The sandbox and container of a state: as reported by NRI or Kata's files, else as named in the state. At
    poststart and poststop Kata's Go runtime passes the sandbox's id; then the bundle's directory is named after the
    container."""
    sandbox, container = hook.sandbox, hook.container
    recorded = state.sandboxes.get(sandbox)
    alone = str(container) == str(sandbox)
    base = ContainerId(bundle_id(hook.bundle))
    if recorded is not None and alone and base in recorded.containers:
        container = base
    elif recorded is None and alone:
        # No annotation names a sandbox, but an earlier state or another source may have done so.
        sandbox = next((other.id for other in state.sandboxes.values() if container in other.containers), sandbox)
    for other in state.sandboxes.values():
        record = other.containers.get(container)
        if (record is not None and other.id != sandbox and not record.stopped
                and (record.reported_by(Source.NRI) or record.reported_by(Source.KATA))):
            return _Membership(other.id, container, record.container.pause, f"sandbox {sandbox}")
    own = SandboxId(container)
    if own != sandbox and own in state.sandboxes and state.sandboxes[own].runtime != "oci":
        return _Membership(own, container, True, f"sandbox {sandbox}, of a container that is a sandbox's own")
    return _Membership(sandbox, container, hook.pause)


def _created(hook: HookState, member: _Membership, when: int, proc: Procfs,
             exclusive_annotation: str) -> Iterator[Event]:
    sandbox, container = member.sandbox, member.container
    pid, (vmm, init, named) = hook.pid, owner_of(hook.pid, proc, sandbox, when)
    if hook.stage in _WITHIN and not (named and sandbox.startswith(named)):
        pid, vmm, init = 0, None, None
    cpuset, annotations, bundle = None, hook.annotations, ""
    if hook.bundle:
        try:
            config = read_bundle(hook.bundle)
        except SourceError as err:
            # Not fatal: the container is recorded, and another source may report its cpuset.
            logger.warning("bundle cannot be read container=%s: %s", container, err)
            # The bundle may be where vmpin cannot read. But the container has ended if its process has, or if it has
            # no process of its own (with Kata the pid is the VMM's) and the bundle is missing from an existing
            # directory: then the bundle is recorded, so that the next check of it ends the container.
            ended = pid and has_ended(pid, proc, when)
            bundle = hook.bundle if ended or (init is None and _missing(hook.bundle)) else ""
        else:
            bundle, cpuset, annotations = hook.bundle, config.cpuset, {**config.annotations, **hook.annotations}
            if config.trouble:
                logger.warning("bundle cannot be used container=%s: %s: taken as a container without a cpuset",
                               container, config.trouble)
    # In the config of CRI-O's pause container the pod author's annotations override CRI-O's.
    pod = None if member.ignored or (member.pause and hook.dialect is CRIO) else pod_of(annotations, hook.dialect)
    yield SandboxSeen(sandbox, "oci", pod, vmm)
    seen = Container(container, cpuset=cpuset, pause=member.pause)
    if not member.pause:  # a pause container has no name, and owns no CPUs
        seen = seen._replace(name=name_of(annotations, hook.dialect),
                             exclusive=declared_exclusive(annotations, exclusive_annotation))
    yield ContainerSeen(sandbox, seen, Source.BUNDLE, when, bundle, init)


def _missing(bundle: str) -> bool:
    """Whether a bundle is missing from an existing parent directory. The bundles of CRI-O and podman are
    .../ID/userdata, of which they remove ID."""
    return bundle_gone(bundle) and os.path.isdir(os.path.dirname(bundle.rstrip("/").removesuffix("/userdata")))
