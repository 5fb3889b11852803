"""Steps for one sandbox that must not stop the others: run, and logged once for each cause.

For everything that is about a single VM.
"""

import logging
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

from vmpin.domain.model import SandboxId

logger = logging.getLogger(__name__)

class Failures:
    """:param recheck: called with a sandbox whose step failed: it is compared thread by thread in the next pass."""

    def __init__(self, recheck: Callable[[SandboxId], None]) -> None:
        self._recheck = recheck
        #: Why the last step of a sandbox failed.
        self._causes: dict[SandboxId, str] = {}

    @contextmanager
    def recorded(self, sandbox: SandboxId) -> Iterator[None]:
        """A step of one sandbox: what it raises is recorded, and goes no further."""
        try:
            yield
        except Exception as err:
            self.record(sandbox, err)

    def record(self, sandbox: SandboxId, err: Exception) -> None:
        """A step failed (called in an except block). Logged when it is another cause than the last time."""
        self._recheck(sandbox)
        if self._causes.get(sandbox) != repr(err):
            logger.error("not reconciled sandbox=%s: %r", sandbox, err)
            logger.debug("sandbox=%s", sandbox, exc_info=True)
        self._causes[sandbox] = repr(err)

    def keep_only(self, sandboxes: Container[SandboxId]) -> None:
        self._causes = {sandbox: cause for sandbox, cause in self._causes.items() if sandbox in sandboxes}
