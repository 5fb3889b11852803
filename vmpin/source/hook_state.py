"""A hook's state into events: with what can be looked up at that moment, the bundle and the process behind the pid."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from vmpin.errors import SourceError
from vmpin.events import ContainerSeen, ContainerStopped, Event, SandboxSeen, Source
from vmpin.host.procfs import Procfs
from vmpin.model import Container, ContainerId, SandboxId
from vmpin.runtime.oci import (
    HookMessage,
    HookState,
    bundle_gone,
    declared_exclusive,
    name_of,
    parse_state,
    pod_of,
    read_bundle,
)
from vmpin.source.pids import behind, gone
from vmpin.state import DesiredState

logger = logging.getLogger(__name__)


def events_of(message: HookMessage, state: DesiredState, proc: Procfs, exclusive_annotation: str) -> list[Event]:
    """What a hook's message says.

    :raises SourceError: when it cannot be used.
    :raises OSError: when what it speaks of cannot be looked up just now.
    """
    hook = parse_state(message)
    sandbox, container = _whose(hook, state)
    if hook.stopped:
        return [ContainerStopped(sandbox, container, hook.time)]
    return list(_created(hook, sandbox, container, proc, exclusive_annotation))


def _whose(hook: HookState, state: DesiredState) -> tuple[SandboxId, ContainerId]:
    """The sandbox and container meant. Kata's Go runtime gives the sandbox's id at poststart and poststop; where no
    annotation tells, the bundle's directory is named after the container."""
    base = ContainerId(hook.bundle.rstrip("/").rpartition("/")[2])
    known = state.sandboxes.get(hook.sandbox)
    alone = str(hook.container) == str(hook.sandbox)
    if known is not None and alone and base in known.containers:
        return hook.sandbox, base
    if known is None and alone:
        # No annotation named a sandbox; it may have been heard of earlier.
        for sandbox in state.sandboxes.values():
            if hook.container in sandbox.containers:
                return sandbox.id, hook.container
    return hook.sandbox, hook.container


def _created(hook: HookState, sandbox: SandboxId, container: ContainerId, proc: Procfs,
             exclusive_annotation: str) -> Iterator[Event]:
    vmm, init = behind(hook.pid, proc, hook.time)
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
            over = hook.pid and gone(hook.pid, proc, hook.time)
            bundle = hook.bundle if over or (init is None and _missing(hook.bundle)) else ""
        else:
            bundle, cpuset, annotations = hook.bundle, config.cpuset, {**config.annotations, **hook.annotations}
            if config.trouble:
                logger.warning("container=%s: %s: taken as a container without a cpuset", container, config.trouble)
    exclusive = declared_exclusive(annotations, exclusive_annotation)
    yield SandboxSeen(sandbox, "oci", pod_of(annotations), vmm)
    yield ContainerSeen(sandbox, Container(container, name_of(annotations), cpuset, exclusive, pause=hook.pause),
                        Source.BUNDLE, hook.time, bundle, init)


def _missing(bundle: str) -> bool:
    """Whether a bundle is not there, while what it was in is. CRI-O and podman have it in .../ID/userdata, and remove
    ID."""
    return bundle_gone(bundle) and os.path.isdir(os.path.dirname(bundle.rstrip("/").removesuffix("/userdata")))
