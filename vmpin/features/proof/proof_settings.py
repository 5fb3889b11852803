"""The section `proof` of the configuration."""

from __future__ import annotations

from vmpin.config import values
from vmpin.config.values import setting
from vmpin.named_tuple import NamedTuple


def _seconds_or_off(value: object) -> float:
    """0 for off."""
    return 0.0 if value is False or value in ("off", "0", 0) else values.seconds(value)


class ProofSettings(NamedTuple):
    """`proof`: the measurement of where threads ran."""

    sample_seconds: float = setting(
        10.0, _seconds_or_off, "how often the CPU of each thread is sampled; off: never")
