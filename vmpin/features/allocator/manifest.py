"""The parts of the feature `allocator` (docs/allocation.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vmpin.feature import Feature

if TYPE_CHECKING:
    from vmpin.config.settings import Config
    from vmpin.doctor.finding import Check
    from vmpin.errors import ConfigError


def _sections() -> Mapping[str, type[Any]]:
    from vmpin.features.allocator.allocate_settings import AllocateSettings

    return {"allocate": AllocateSettings}


#: The key of what hands changed annotations over; no key where nothing can.
_WATCH_PODS = "kubernetes.watch_pods"


def _check_config(config: Config) -> ConfigError | None:
    if not config.of_features["allocate"].live_annotations or config.values.get(_WATCH_PODS):
        return None
    from vmpin.errors import ConfigError

    return ConfigError(f"allocate.live_annotations is on and {_WATCH_PODS} is off: changed annotations "
                       "come with the pods' data that the reporter hands over", "switch both on, or the first one off")


def _watched_annotations(config: Config) -> Callable[[str], bool] | None:
    if not config.of_features["allocate"].live_annotations:
        return None
    from vmpin.features.allocator.texts.asking_annotations import asks

    return asks


def _checks() -> Sequence[Check]:
    from vmpin.doctor.finding import Check
    from vmpin.features.allocator.allocation_checks import allocation

    return [Check("allocation", "allocate.mode: other programs that give out CPUs, and what the scheduler counts",
                  allocation)]


FEATURE = Feature("allocator", sections=_sections, check_config=_check_config,
                  watched_annotations=_watched_annotations, checks=_checks)
