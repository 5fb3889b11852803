"""How the OCI hook is registered: its stages, its command line, and the time limit that the runtime sets it.

The defaults are those of the script (hooks/vmpin-hook), which is why they are left out of its command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmpin.errors import UsageError

STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
#: Kata's runtime-rs never runs createRuntime for the containers of a pod, its Go shim never createContainer.
DEFAULT_STAGES = ("createRuntime", "createContainer", "poststart", "poststop")
SCRIPT = "vmpin-hook"
DEFAULT_SOCKET = Path("/run/vmpin/hook.sock")
DEFAULT_SPOOL = Path("/run/vmpin/spool")
DEFAULT_DEADLINE_MS = 200
#: The runtime's own limit fails the container, so it is far beyond the hook's deadline: it only has to end an
#: interpreter that cannot be started, on a node whose disk hangs.
DEFAULT_TIMEOUT_S = 30


@dataclass(frozen=True)
class HookOptions:
    """The hook's options, its stages, and the runtime's limit. :raises UsageError: with these no hook could run."""

    stages: tuple[str, ...] = DEFAULT_STAGES
    socket: Path = DEFAULT_SOCKET
    spool: Path = DEFAULT_SPOOL
    #: Milliseconds that the hook waits for the watcher.
    deadline_ms: int = DEFAULT_DEADLINE_MS
    fail_closed: bool = False
    #: Seconds after which the runtime ends the hook and fails the container.
    timeout_s: int = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        unknown = [stage for stage in self.stages if stage not in STAGES]
        if unknown or not self.stages:
            raise UsageError(f"no OCI hook stage: {', '.join(unknown) or 'none given'}",
                             f"the stages are {', '.join(STAGES)}")
        for name, path in ("socket", self.socket), ("spool", self.spool):
            if not path.is_absolute() or not str(path).isprintable():
                raise UsageError(f"the {name} path {str(path)!r} is not absolute and printable",
                                 "the hook runs in the container's bundle directory")
        if not 1 <= self.deadline_ms < self.timeout_s * 1000:
            raise UsageError(f"a deadline of {self.deadline_ms} ms is not between 1 ms and the runtime's timeout of "
                             f"{self.timeout_s} s", "the runtime fails the container when its timeout ends the hook")

    def args(self, stage: str) -> list[str]:
        """The hook's argv for `stage`, with only the options that differ from the script's own defaults."""
        args = [SCRIPT]
        for name, value, default in (("--socket", self.socket, DEFAULT_SOCKET), ("--spool", self.spool, DEFAULT_SPOOL),
                                     ("--deadline", self.deadline_ms, DEFAULT_DEADLINE_MS)):
            if value != default:
                args += [name, str(value)]
        if self.fail_closed:
            args += ["--fail-closed"]
        return [*args, stage]

    def entry(self, script: Path, stage: str) -> dict[str, Any]:
        """One hook as a JSON object of the OCI runtime spec (config.md, "POSIX-platform Hooks")."""
        return {"path": str(script), "args": self.args(stage), "timeout": self.timeout_s}
