"""The topology of the node, kept from resync to resync."""

import logging

from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.host.sysfs import Sysfs

logger = logging.getLogger(__name__)


class KeptTopology:
    """The topology as read last. :raises SourceError: if it cannot be read at first."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self.last: Topology = sysfs.topology()

    def read(self) -> bool:
        """Read which CPUs are online and isolated, and the topology if that changed. If it cannot be read, the last
        one stays. :returns: whether there is another."""
        before = self.last
        try:
            if (self._sysfs.online() == before.online
                    and self._sysfs.set_apart(before.online | before.present) == (before.isolated, before.nohz_full)):
                return False
            self.last = self._sysfs.topology()
        except SourceError as err:
            logger.error("topology not read, the last one is used: %s", err)
            return False
        for name in ("online", "isolated", "nohz_full"):
            if (old := getattr(before, name)) != (new := getattr(self.last, name)):
                logger.info("%s CPUs changed from %s to %s", name, old or "none", new or "none")
        return True
