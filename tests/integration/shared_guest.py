"""A real guest for the tests of a module: it takes seconds to boot, and each test takes back what it changed.

After a failed test another one is booted, as the failed one may have left vCPUs, containers or processes: when a test
is made once more, neither it nor those after it fail by that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType

import pytest
from failed import has_failed
from real_guest import RealGuest, image


class SharedGuest:
    """Boots a guest when it is first asked for. :param make: makes it from the image."""

    def __init__(self, make: Callable[..., RealGuest]) -> None:
        self._make, self._stack = make, contextlib.ExitStack()
        self._guest: RealGuest | None = None

    def __enter__(self) -> SharedGuest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        self._guest = None
        self._stack.close()

    def lent(self, request: pytest.FixtureRequest) -> Iterator[RealGuest]:
        """The body of a fixture of one test."""
        if self._guest is None:
            self._guest = self._stack.enter_context(self._make(self._stack.enter_context(image())))
        yield self._guest
        if has_failed(request):
            self.end()
