"""What an agent reported, and why none did, as the status and the log show it. Pure."""

import errno
from collections import Counter
from collections.abc import Mapping

from vmpin.domain.guest_report import APPLIED, PENDING, ContainerReport
from vmpin.domain.model import ContainerId
from vmpin.guests.transport.channel import NotListening
from vmpin.protocol.frames import ProtocolError, clean
from vmpin.protocol.messages import VERSION, ContainerOutcome


def container_report(outcome: ContainerOutcome) -> ContainerReport:
    """An agent's outcome for one container. Its texts are printable and cut already (protocol.parsing)."""
    # Never better than the details: a container with threads outside is not applied.
    state = PENDING if outcome.state == APPLIED and outcome.outside else outcome.state
    return ContainerReport(state, outcome.error, outcome.cgroup or "", outcome.wanted, outcome.effective,
                           outcome.processes, outcome.threads, outcome.outside)


def summary(reports: Mapping[ContainerId, ContainerReport]) -> str:
    """One line for the log: the number of containers in each state, and the first three errors.

    >>> summary({ContainerId("a"): ContainerReport("applied"), ContainerId("b"): ContainerReport("error", "EIO")})
    'applied 1, error 1 (b: EIO)'
    """
    count = Counter(report.state for report in reports.values())
    errors = [f"{container}: {report.error}" for container, report in reports.items() if report.error][:3]
    return ", ".join(f"{state} {number}" for state, number in sorted(count.items())) + (
        f" ({'; '.join(errors)})" if errors else "")


#: The state of a guest that boots, or whose agent creates a container: its sockets exist before it answers.
WAITING = "waiting for an answer"
#: Attempts in a row that may time out before the guest is reported as silent: with the pauses between them (attempts)
#: a minute. A guest that boots under nested virtualization on a busy machine took 22 s until its kernel refused a
#: connection.
PATIENCE = 20
#: The same for a guest in which no container is known to have been created: ten minutes. A guest that booted on an
#: emulated machine took three and a half.
BOOT_PATIENCE = 200


class TimeoutStreak:
    """Counts the attempts in a row that timed out."""

    def __init__(self) -> None:
        self._times = 0

    def add(self, err: Exception, boots: bool = False) -> bool:
        """Count a failed attempt. :param boots: whether the guest may still boot.
        :returns: whether the guest is still given time to answer."""
        self._times = self._times + 1 if isinstance(err, TimeoutError) else 0
        return 0 < self._times < (BOOT_PATIENCE if boots else PATIENCE)

    def reset(self) -> None:
        """End the streak: the agent has answered."""
        self._times = 0


def has_ended(err: Exception) -> bool:
    """Whether the VM ends or has ended: it has no vsock device any more (drivers/vhost/vsock.c), or no socket."""
    return isinstance(err, OSError) and err.errno in (errno.ENODEV, errno.ENOENT)


def reason(err: Exception) -> str:
    """Why there is no connection, printable in a log line and a terminal: a path comes from the VMM's command line."""
    if isinstance(err, NotListening):
        return "no process listens"
    if isinstance(err, ProtocolError):
        return clean(f"what came is not version {VERSION} of the protocol: {err}")
    if isinstance(err, TimeoutError):
        return "no answer in time"
    if isinstance(err, OSError):
        return clean(f"{err.filename}: {err.strerror}" if err.filename else err.strerror or repr(err))
    return clean(str(err))
