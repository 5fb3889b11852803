"""What can go wrong between vmpin and the API server.

ClusterError         the API server is away, or refused
└── AnswerTooLong    its answer has more bytes than are taken; the rest was not read
"""

from __future__ import annotations

from vmpin.errors import VmpinError


class ClusterError(VmpinError):
    """`status` is HTTP's, 0 without an answer; `after` the seconds that it asks to wait, 0 for none."""

    def __init__(self, message: str, status: int = 0, after: float = 0.0, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status, self.after = status, after


class AnswerTooLong(ClusterError):
    pass
