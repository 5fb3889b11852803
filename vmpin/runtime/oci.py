"""Parses a hook's message: the state that an OCI runtime passes to the hook, and the config.json of its bundle.

Supports runc, crun, containerd, CRI-O, podman, and both Kata runtimes. What can be looked up is not taken from the
state, and the only path in it that is opened is the bundle's config.json.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress

from vmpin.bounded import parse_whole
from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.model import ContainerId, SandboxId, valid_id
from vmpin.errors import SourceError, passing
from vmpin.host.files import read_regular
from vmpin.named_tuple import NamedTuple
from vmpin.runtime.dialect import CRIO, Dialect, bundle_id, dialect_of, foreign, other, plain
from vmpin.runtime.documents import dig, parse_json, parse_object, pid_of

#: Size limits in bytes (the first is the hook's own). A real state has a few kB, a real config.json some 20 kB.
MAX_STATE, MAX_BUNDLE = 4 << 20, 4 << 20

#: The highest time in ns: the kernel's clocks have 64 bits.
_MAX_TIME = (1 << 64) - 1
HEADER = b"vmpin-hook/1 "
#: The container types of a pause container in annotations (dockershim: podsandbox).
_PAUSE = ("sandbox", "podsandbox")
STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


class HookState(NamedTuple):
    """A parsed message: the state, the stage for which the hook was registered, and the hook's time (CLOCK_BOOTTIME,
    ns). `pid` depends on the runtime: the container's process, the VMM, a thread of the shim, or 0."""

    stage: str
    container: ContainerId
    sandbox: SandboxId
    pid: int
    bundle: str
    annotations: Mapping[str, str]
    pause: bool  #: The sandbox's own (pause) container.
    dialect: Dialect  #: The family of annotations that the runtime writes.
    #: Keys of the other family that contradict it. They are from the pod's author and are ignored.
    foreign: tuple[str, ...] = ()
    time: int = 0

    @property
    def stopped(self) -> bool:
        return self.stage == "poststop"


def container_in(raw: bytes) -> str:
    """The container's id in a message that `parse_hook` has refused, for the log; "-" if it has none."""
    with suppress(SourceError):
        name = parse_object(split_message(raw)[2], "").get("id")
        return name if isinstance(name, str) and valid_id(name) else "-"
    return "-"


def split_message(raw: bytes) -> tuple[str, int, bytes]:
    """Split a hook's message. :returns: stage, time and raw state. :raises SourceError: the header is invalid."""
    line, newline, state = raw.partition(b"\n")
    if not newline or not line.startswith(HEADER) or len(line) > 256:
        raise SourceError("hook message", "does not begin with the vmpin-hook/1 line")
    fields = dict(part.partition("=")[::2] for part in line[len(HEADER):].decode("ascii", "replace").split())
    stage = fields.get("stage", "")
    if stage not in STAGES:
        raise SourceError("hook message", f"unknown stage {stage[:40]!r}")
    boot = fields.get("boot", "")
    if (time := parse_whole(boot, _MAX_TIME)) is None:
        raise SourceError("hook message", f"boot {boot[:40]!r} is no number of nanoseconds")
    if len(state) > MAX_STATE:
        raise SourceError("hook message", f"the state is {len(state)} bytes long, at most {MAX_STATE} are read")
    return stage, time, state


def parse_hook(raw: bytes) -> HookState:
    """Parse a hook's message with its state. :raises SourceError: it is invalid."""
    stage, time, raw_state = split_message(raw)
    where = f"{stage} hook state"
    if not raw_state.strip():
        raise SourceError(where, "is empty")
    state = parse_object(raw_state, where)
    state_id = state.get("id")
    if not isinstance(state_id, str) or not valid_id(state_id):
        raise SourceError(where, f"id {str(state_id)[:80]!r} is no container id")
    bundle = state.get("bundle") or ""
    if bundle and not clean_path(bundle):
        raise SourceError(where, f"bundle {str(bundle)[:120]!r} of {state_id} is no plain absolute path")
    pid = pid_of(state.get("pid"))  # at poststop it is 0 with crun and missing with runc
    annotations = _strings(state.get("annotations"))
    dialect = dialect_of(str(bundle))
    container, sandbox, pause = _identity(where, state_id, str(bundle), annotations, dialect)
    return HookState(stage, ContainerId(container), SandboxId(sandbox), pid, str(bundle),
                     annotations, pause, dialect, tuple(foreign(annotations, dialect)), time)


def _identity(where: str, state_id: str, bundle: str, annotations: Mapping[str, str],
              dialect: Dialect) -> tuple[str, str, bool]:
    """Derive (container id, sandbox id, whether it is the pause container). The state's id and the bundle's path take
    precedence, because only the runtime writes them. :raises SourceError: annotations contradict them or each
    other."""
    kind, named = annotations.get(dialect.kind), annotations.get(dialect.sandbox)
    other_sandbox = annotations.get(other(dialect).sandbox)
    if named is not None and not valid_id(named):
        raise SourceError(where, f"sandbox id {named[:80]!r} of {state_id} is no valid id")
    if named is not None and other_sandbox not in (None, named):
        raise SourceError(where, f"the annotations of {state_id} name two sandboxes: {dialect.sandbox} {named}, and "
                                 f"{other(dialect).sandbox} {plain(str(other_sandbox), 80)}")
    # Kata's Go runtime passes the sandbox's id in place of the container's at poststart and poststop.
    replaced = bundle_id(bundle) != state_id if dialect is CRIO else kind == "container" and named == state_id
    container = bundle_id(bundle) if replaced else state_id
    if not valid_id(container):
        raise SourceError(where, f"names no container of sandbox {state_id}")
    is_sandbox_id = replaced or kind in _PAUSE
    if is_sandbox_id and named not in (None, state_id):
        raise SourceError(where, f"{state_id} is a sandbox by its state, and its annotation {dialect.sandbox} names "
                                 f"another: {named}")
    # Other containers have an id of their own. In the config of CRI-O's pause container `kind` may be the author's.
    pause = not replaced and (kind in _PAUSE or (dialect is CRIO and named == state_id))
    return container, state_id if is_sandbox_id else named or state_id, pause


def clean_path(path: object) -> bool:
    """Whether a path is absolute, without "..", and printable. (JSON may have halves of a surrogate pair, which no
    file name can contain.)"""
    return (isinstance(path, str) and path.startswith("/") and len(path) < 4096 and path.isprintable()
            and ".." not in path.split("/"))


def _strings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {key: item for key, item in value.items() if isinstance(key, str) and isinstance(item, str)}


class BundleConfig(NamedTuple):
    """The contents of a bundle's config.json. `cpuset` is None if missing or invalid (`trouble` has the error)."""

    cpuset: CpuSet | None
    annotations: Mapping[str, str]
    trouble: str = ""


def bundle_gone(bundle: str) -> bool:
    """Whether a bundle's directory does not exist. False if this cannot be determined now."""
    try:
        os.stat(bundle)
    except ValueError:
        return True  # not a valid path
    except OSError as err:
        return err.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
    return False


def read_bundle(bundle: str) -> BundleConfig:
    """Read `bundle`/config.json. Only a regular file of limited size is read, because the path comes from a hook.
    :raises SourceError: it does not exist or is invalid. :raises OSError: it cannot be read now (`passing`)."""
    if not clean_path(bundle):
        raise SourceError(repr(bundle[:120]), "is no plain absolute path")
    path = os.path.join(bundle, "config.json")
    try:
        raw, _ = read_regular(path, MAX_BUNDLE)
    except OSError as err:
        if passing(err):
            raise
        raise SourceError(path, f"is larger than {MAX_BUNDLE >> 20} MiB" if err.errno == errno.EFBIG
                          else err.strerror or str(err)) from err
    config = parse_json(raw, path)
    annotations, cpus = _strings(dig(config, "annotations")), dig(config, "linux", "resources", "cpu", "cpus")
    if cpus is None or cpus == "":
        return BundleConfig(None, annotations)
    try:
        cpuset = CpuSet.parse(cpus if isinstance(cpus, str) else repr(cpus))
    except CpuSetError as err:
        return BundleConfig(None, annotations, f"{path}: linux.resources.cpu.cpus: {err}")
    return BundleConfig(cpuset or None, annotations)
