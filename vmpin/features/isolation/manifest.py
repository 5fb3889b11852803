"""The parts of the feature `isolation` (docs/isolation.md, docs/top.md)."""

from __future__ import annotations

from vmpin.feature import Feature

_VERBS = "vmpin.features.isolation.verbs"

FEATURE = Feature("isolation", verbs={"isolation": f"{_VERBS}.isolation", "top": f"{_VERBS}.top.command"})
