"""`vmpin demo`: what the program does, shown on this machine with small VMs of its own.
docs/worth.md describes it."""

from __future__ import annotations

from vmpin.feature import Feature

FEATURE = Feature(name="demo", verbs={"demo": "verbs"}, service_verbs=("demo",))
