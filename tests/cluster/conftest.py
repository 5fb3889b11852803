"""The programs, and API servers that tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab.errors import LabError
from need import lacking

from cluster.build import Programs, programs
from cluster.server import ApiServer


@pytest.fixture(scope="session")
def built() -> Iterator[Programs]:
    """Built in the background of the session (tests/conftest.py), and waited for here."""
    try:
        with programs() as found:
            yield found
    except LabError as err:
        lacking(str(err))


@pytest.fixture(scope="module")
def server(built: Programs) -> Iterator[ApiServer]:
    """One for all tests of a file: each takes names of its own."""
    with ApiServer(built) as started:
        yield started
