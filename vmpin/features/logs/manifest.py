"""The parts of the feature `logs`."""

from vmpin.feature import Feature

FEATURE = Feature(name="logs", verbs={"logs": "vmpin.features.logs.verbs.logs"})
