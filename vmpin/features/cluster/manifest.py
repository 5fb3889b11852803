"""The parts of the feature `cluster` (docs/kubernetes.md)."""

from __future__ import annotations

from vmpin.feature import Feature

FEATURE = Feature("cluster")
