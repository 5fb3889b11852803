"""The parts of the feature `demo` (docs/worth.md)."""

from __future__ import annotations

from vmpin.feature import Feature

FEATURE = Feature(name="demo", verbs={"demo": "vmpin.features.demo.verbs"}, service_verbs=("demo",))
