"""JSON that other programs write: parsing with errors that name the file.

What stays out: what is in it (oci, kata, kubelet), which call this.
"""

from __future__ import annotations

import json

from vmpin.errors import SourceError


def parse_json(raw: bytes | str, where: str) -> object:
    """Parse JSON. :param where: the name of the file or message, for errors. :raises SourceError: when it is none."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as err:
        raise SourceError(where, f"is not JSON: {str(err)[:100]}") from err


def parse_object(raw: bytes | str, where: str) -> dict[str, object]:
    """Parse a JSON object. :raises SourceError: when it is not JSON, or another value."""
    found = parse_json(raw, where)
    if not isinstance(found, dict):
        raise SourceError(where, "is no JSON object")
    return found
