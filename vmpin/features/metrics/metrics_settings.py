"""`metrics`: where they are served, and of what."""

from typing import TYPE_CHECKING, NamedTuple

from vmpin.config import values
from vmpin.config.values import Address, setting

if TYPE_CHECKING:
    from vmpin.config.settings import Config


class MetricsSettings(NamedTuple):
    """`metrics`: where they are served."""

    address: Address | None = setting(
        None, values.address,
        "where metrics and probes are served: an IP address and port (127.0.0.1:9750), or unix:/path; unset: nowhere")
    per_sandbox: bool = setting(
        False, values.flag, "whether there are metrics of each sandbox, labelled with its pod")


def metrics(config: "Config") -> MetricsSettings:
    """The section `metrics` of a configuration."""
    section: MetricsSettings = config.of_features["metrics"]
    return section
