"""The authorities of this node, with what they decide by: the kubelet's checkpoint, the claims of a DRA driver, the
cpusets of all containers, the configuration, and the features.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from vmpin.authorities.authority import Authorities
from vmpin.authorities.dra_authority import DraAuthority
from vmpin.authorities.kubelet_authority import KubeletCheckpoint, kubelet_authority
from vmpin.authorities.observed_authority import ObservedAuthority
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.feature import features, present

logger = logging.getLogger(__name__)


class NodeAuthorities(Authorities):
    """Reads the checkpoint and the claims.
    :param saved: the kubelet's state at the last save. :param online: returns the CPUs that are online.
    :param complete: as for `observe`."""

    def __init__(self, config: Config, boot_id: str, saved: CpuManagerState | None, online: Callable[[], CpuSet],
                 complete: bool) -> None:
        paths = config.paths
        self.checkpoint = KubeletCheckpoint(paths.kubelet, logger.warning, saved if config.watch.kubelet else None)
        #: The kubelet's checkpoint in force; None if it is not read, or there is none.
        self.kubelet: CpuManagerState | None = self.checkpoint.read() if config.watch.kubelet else None
        self.unsaved = self.kubelet != saved  #: Whether the state file has another checkpoint.
        self.dra = DraAuthority(paths.cdi, paths.kubelet, partial(logger.warning, "claims file=%s"))
        self.dra.read()
        self._observed = ObservedAuthority(online)
        super().__init__(config.node.shared_pool, [kubelet_authority(self.kubelet)])
        self.put(self.dra, self.dra.rules)
        self.observe(config, complete)
        for authority_of in present(feature.authority for feature in features()):
            if (authority := authority_of(config, boot_id)) is not None:
                self.put(authority)

    def read(self, config: Config, resync: bool = False) -> None:
        """Read the checkpoint and the claims, which are written before the runtime creates the container.
        :param resync: also find out whether the DRA driver still runs."""
        if self.dra.read(resync):
            self.put(self.dra, self.dra.rules)
        before, self.kubelet = self.kubelet, self.checkpoint.read() if config.watch.kubelet else None
        if self.kubelet != before:
            self.unsaved = True
            self.put(kubelet_authority(self.kubelet))

    def observe(self, config: Config, complete: bool) -> None:
        """Begin or stop to derive ownership from the cpusets of all containers, from the next pass on.
        :param complete: whether the runtime has listed every container."""
        self.put(self._observed, complete and config.policy.observed_ownership == "auto" and config.watch.nri != "off")
