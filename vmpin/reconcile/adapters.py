"""The files and kernel interfaces that a reconciler reads and writes, as one value that a test can replace."""

from __future__ import annotations

import logging
from functools import partial

from vmpin.config.settings import Config
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.named_tuple import NamedTuple
from vmpin.reconcile.state_file import StateStore
from vmpin.runtime.kata import KataState

logger = logging.getLogger(__name__)


class Adapters(NamedTuple):
    proc: Procfs
    sysfs: Sysfs
    cgroups: Cgroups
    kata: KataState
    store: StateStore
    boot_id: str

    @classmethod
    def of(cls, config: Config) -> Adapters:
        """The adapters for the paths of a configuration. :raises SourceError: without a boot id."""
        proc = Procfs(config.paths.proc)
        boot_id = proc.boot_id()
        return cls(proc, Sysfs(config.paths.sys), Cgroups(config.paths.cgroup, proc),
                   KataState(config.paths.kata_go, config.paths.kata_rs,
                             partial(logger.warning, "Kata's state file=%s"), config.policy.exclusive_annotation),
                   StateStore(config.paths.state_file, config.paths.notes_file, boot_id, config.paths.originals_file),
                   boot_id)
