"""`runc`: whether containers outside VMs are given back CPUs that they have lost."""

from __future__ import annotations

from vmpin.config import values
from vmpin.config.values import setting
from vmpin.named_tuple import NamedTuple


class RuncSettings(NamedTuple):
    """`runc`."""

    repair: bool = setting(False, values.flag, "whether the runtime is asked (CRI) to give a runc container back the "
                           "CPUs that the kubelet gave it, when its cgroup has others")
