"""Turns a hook's state into events, with what can be looked up then: the bundle and the process behind the pid."""

import logging
import os
from collections.abc import Iterator
from typing import NamedTuple

from vmpin.domain.counters import Counters
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import ContainerSeen, ContainerStopped, Event, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, SandboxId
from vmpin.errors import SourceError
from vmpin.host import boottime
from vmpin.host.procfs import Procfs
from vmpin.runtime.dialect import CRIO, bundle_id, declared_exclusive, name_of, pod_of
from vmpin.runtime.oci import HookState, bundle_gone, read_bundle
from vmpin.sources.pids import has_ended, owner_of

logger = logging.getLogger(__name__)


class _Membership(NamedTuple):
    """Where a state's container belongs. `ignored` names the annotation that contradicts it, "" for none."""

    sandbox: SandboxId
    container: ContainerId
    pause: bool
    ignored: str = ""


def events_of(hook: HookState, state: DesiredState, proc: Procfs, exclusive_annotation: str,
              counters: Counters | None = None) -> list[Event]:
    """The events that follow from a hook's state. None of them concerns another sandbox than the container's own, even
    if the pod's author names one in annotations.
    :param exclusive_annotation: the key by which a container declares its CPUs exclusive, "" for none.
    :param counters: its `disputed` counts the states with annotations that were ignored.
    :raises OSError: when the bundle or the process cannot be looked up at the moment (`errors.passing`)."""
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
    """The sandbox and container that a state is about: as NRI or Kata's state has them, else as the state names them.
    Kata's Go runtime gives the sandbox's id at poststart and poststop; the directory of the bundle is named after the
    container."""
    sandbox, container = hook.sandbox, hook.container
    recorded = state.sandboxes.get(sandbox)
    alone = str(container) == str(sandbox)
    base = ContainerId(bundle_id(hook.bundle))
    if recorded is not None and alone and base in recorded.containers:
        container = base
    elif recorded is None and alone:
        # No annotation named a sandbox; an earlier state or another source may have.
        sandbox = next((each.id for each in state.sandboxes.values() if container in each.containers), sandbox)
    for other in state.sandboxes.values():
        there = other.containers.get(container)
        if (there is not None and other.id != sandbox and not there.stopped
                and (there.reported_by(Source.NRI) or there.reported_by(Source.KATA))):
            return _Membership(other.id, container, there.container.pause, f"sandbox {sandbox}")
    itself = SandboxId(container)
    if itself != sandbox and itself in state.sandboxes and state.sandboxes[itself].runtime != "oci":
        return _Membership(itself, container, True, f"sandbox {sandbox}, of a container that is a sandbox's own")
    return _Membership(sandbox, container, hook.pause)


def _created(hook: HookState, member: _Membership, when: int, proc: Procfs,
             exclusive_annotation: str) -> Iterator[Event]:
    sandbox, container = member.sandbox, member.container
    vmm, init = owner_of(hook.pid, proc, sandbox, when)
    cpuset, annotations, bundle = None, hook.annotations, ""
    if hook.bundle:
        try:
            config = read_bundle(hook.bundle)
        except SourceError as err:
            # Not fatal: the container is recorded, and its cpuset may come from elsewhere.
            logger.warning("bundle cannot be read container=%s: %s", container, err)
            # It may lie where vmpin cannot read. But when the container's process has ended, too, or it has none of
            # its own (with Kata the pid is the VMM's) and the bundle is missing where it should be, the container has
            # ended: the next check of the bundle shows it.
            over = hook.pid and has_ended(hook.pid, proc, when)
            bundle = hook.bundle if over or (init is None and _missing(hook.bundle)) else ""
        else:
            bundle, cpuset, annotations = hook.bundle, config.cpuset, {**config.annotations, **hook.annotations}
            if config.trouble:
                logger.warning("bundle cannot be used container=%s: %s: taken as a container without a cpuset",
                               container, config.trouble)
    # In the config of CRI-O's pause container the author's annotations come last.
    pod = None if member.ignored or (member.pause and hook.dialect is CRIO) else pod_of(annotations, hook.dialect)
    yield SandboxSeen(sandbox, "oci", pod, vmm)
    made = Container(container, cpuset=cpuset, pause=member.pause)
    if not member.pause:  # a pause container has no name, and owns nothing
        made = made._replace(name=name_of(annotations, hook.dialect),
                             exclusive=declared_exclusive(annotations, exclusive_annotation))
    yield ContainerSeen(sandbox, made, Source.BUNDLE, when, bundle, init)


def _missing(bundle: str) -> bool:
    """Whether a bundle is not there, while its parent directory is. CRI-O and podman have it in .../ID/userdata, and
    remove ID."""
    return bundle_gone(bundle) and os.path.isdir(os.path.dirname(bundle.rstrip("/").removesuffix("/userdata")))
