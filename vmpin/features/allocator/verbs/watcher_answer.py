"""The watcher's answer to a request of the allocator."""

from vmpin.cli.control_client import Document, ask
from vmpin.config.settings import Config
from vmpin.errors import UsageError, WatcherError
from vmpin.features.allocator.allocate_settings import OFF, settings_of


def answer_of(config: Config, request: Document) -> Document:
    """The watcher's answer. :raises WatcherError: no watcher runs. :raises UsageError: it refuses the request, or no
    CPUs are given out."""
    answer = ask(config, request)
    if answer is None and settings_of(config).mode == "off":
        raise UsageError("vmpin gives out no CPUs", OFF)
    if answer is None:
        raise WatcherError(f"{config.paths.control_socket}: no watcher runs, and it alone gives out CPUs",
                           "start it: systemctl start vmpin, or `vmpin watch`")
    return answer
