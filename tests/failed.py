"""Whether a test has failed, for the fixtures that end after it."""

from __future__ import annotations

import pytest

FAILED = pytest.StashKey[bool]()


def has_failed(request: pytest.FixtureRequest) -> bool:
    """True after the test's setup or call has failed."""
    return bool(request.node.stash.get(FAILED, False))
