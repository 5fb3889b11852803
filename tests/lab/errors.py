"""The one error of the lab."""

from __future__ import annotations


class LabError(Exception):
    """The lab itself failed: nothing is known about vmpin."""
