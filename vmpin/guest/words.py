"""What an agent said, and why it said nothing, in the words of the status. Pure."""

from __future__ import annotations

from vmpin.channel import NotThere
from vmpin.guest import APPLIED, PENDING, Said
from vmpin.guestproto import VERSION, Outcome, ProtocolError


def said(outcome: Outcome) -> Said:
    """An agent's word on a container; its texts come out of guestproto printable and cut."""
    # Never better than it says itself: what is outside is not applied.
    state = PENDING if outcome.state == APPLIED and outcome.outside else outcome.state
    return Said(state, outcome.error, outcome.cgroup or "", str(outcome.wanted), str(outcome.effective),
                outcome.processes, outcome.threads, outcome.outside)


def why(err: Exception) -> str:
    """Why there is no connection any more."""
    if isinstance(err, NotThere):
        return "nobody listens"
    if isinstance(err, ProtocolError):
        return f"what came is not version {VERSION} of the protocol: {err}"
    if isinstance(err, TimeoutError):
        return "no answer in time"
    if isinstance(err, OSError):
        return f"{err.filename}: {err.strerror}" if err.filename else err.strerror or repr(err)
    return str(err)
