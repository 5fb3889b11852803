"""A hook's state into events: with what can be looked up at that moment, the bundle and the process behind the pid."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from vmpin.domain.counters import Counters
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import ContainerSeen, ContainerStopped, Event, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId
from vmpin.errors import SourceError
from vmpin.host import boottime
from vmpin.host.procfs import Procfs
from vmpin.runtime.dialect import CRIO, bundle_id, declared_exclusive, name_of, pod_of
from vmpin.runtime.oci import HookMessage, HookState, bundle_gone, parse_state, read_bundle
from vmpin.sources.pids import behind, gone

logger = logging.getLogger(__name__)


class _Home(NamedTuple):
    """Where a state's container belongs. `dispute` says which annotation was not believed, "" for none."""

    sandbox: SandboxId
    container: ContainerId
    pause: bool
    dispute: str = ""


def events_of(message: HookMessage, state: DesiredState, proc: Procfs, exclusive_annotation: str,
              tally: Counters | None = None) -> list[Event]:
    """What a hook's message says. None of its events concerns another sandbox than the container's own, whatever the
    pod's author wrote into annotations.

    :param tally: counts the states with annotations that were not believed.
    :raises SourceError: when it cannot be used.
    :raises OSError: when what it speaks of cannot be looked up just now.
    """
    hook = parse_state(message)
    home = _home(hook, state)
    dispute = home.dispute or (f"{', '.join(hook.foreign)}: not {hook.dialect.runtime}'s own" if hook.foreign else "")
    if dispute:
        logger.warning("container=%s sandbox=%s has annotations of its author's that are not believed: %s",
                       home.container, home.sandbox, dispute)
        if tally is not None:
            tally.disputed += 1
    when = moment(message)
    if hook.stopped:
        return [ContainerStopped(home.sandbox, home.container, when)]
    return list(_created(hook, home, when, proc, exclusive_annotation))


def moment(message: HookMessage) -> int:
    """When the hook began, in ns of CLOCK_BOOTTIME, however old the message is; a time that is yet to come is now."""
    return boottime.of_wall(message.time) if message.boot is None else min(message.boot, boottime.now())


def _home(hook: HookState, state: DesiredState) -> _Home:
    """The sandbox and container meant: as NRI or Kata's state has them, else as the state says.

    Kata's Go runtime gives the sandbox's id at poststart and poststop; where no annotation names the kind, the
    directory of the bundle is named after the container.
    """
    sandbox, container = hook.sandbox, hook.container
    known = state.sandboxes.get(sandbox)
    alone = str(container) == str(sandbox)
    base = ContainerId(bundle_id(hook.bundle))
    if known is not None and alone and base in known.containers:
        container = base
    elif known is None and alone:
        # No annotation named a sandbox; an earlier state or another source may have.
        sandbox = next((each.id for each in state.sandboxes.values() if container in each.containers), sandbox)
    for other in state.sandboxes.values():
        there = other.containers.get(container)
        if (there is not None and other.id != sandbox and there.container.state is not ContainerState.STOPPED
                and (there.reported_by(Source.NRI) or there.reported_by(Source.KATA))):
            return _Home(other.id, container, there.container.pause, f"sandbox {sandbox}")
    itself = SandboxId(container)
    if itself != sandbox and itself in state.sandboxes and state.sandboxes[itself].runtime != "oci":
        return _Home(itself, container, True, f"sandbox {sandbox}, of a container that is a sandbox's own")
    return _Home(sandbox, container, hook.pause)


def _created(hook: HookState, home: _Home, when: int, proc: Procfs, exclusive_annotation: str) -> Iterator[Event]:
    sandbox, container = home.sandbox, home.container
    vmm, init = behind(hook.pid, proc, when)
    cpuset, annotations, bundle = None, hook.annotations, ""
    if hook.bundle:
        try:
            config = read_bundle(hook.bundle)
        except SourceError as err:
            # Not fatal: the container is known of, and its cpuset may come from elsewhere.
            logger.warning("container=%s has no bundle to read: %s", container, err)
            # It may lie where vmpin cannot look. But when its process is gone, too, it is gone; and when there is none
            # of its own (with Kata the pid is the VMM's), and it is missing where it should be. Then the next look at
            # the bundle ends the container.
            over = hook.pid and gone(hook.pid, proc, when)
            bundle = hook.bundle if over or (init is None and _missing(hook.bundle)) else ""
        else:
            bundle, cpuset, annotations = hook.bundle, config.cpuset, {**config.annotations, **hook.annotations}
            if config.trouble:
                logger.warning("container=%s: %s: taken as a container without a cpuset", container, config.trouble)
    # In the config of CRI-O's pause container the author's annotations come last.
    pod = None if home.dispute or (home.pause and hook.dialect is CRIO) else pod_of(annotations, hook.dialect)
    yield SandboxSeen(sandbox, "oci", pod, vmm)
    made = Container(container, cpuset=cpuset, pause=home.pause)
    if not home.pause:  # that one has no name, and owns nothing
        made = replace(made, name=name_of(annotations, hook.dialect),
                       exclusive=declared_exclusive(annotations, exclusive_annotation))
    yield ContainerSeen(sandbox, made, Source.BUNDLE, when, bundle, init)


def _missing(bundle: str) -> bool:
    """Whether a bundle is not there, while what it was in is. CRI-O and podman have it in .../ID/userdata, and remove
    ID."""
    return bundle_gone(bundle) and os.path.isdir(os.path.dirname(bundle.rstrip("/").removesuffix("/userdata")))
