"""Dragonball, a library of Kata's runtime-rs: the VM runs in the shim's own process, and only its threads show it.

Sources: src/dragonball/src/vcpu/vcpu_impl.rs; the socket: hypervisor/src/utils.rs.
"""

from vmpin.vmm.vmm_type import GuestChannels, VmmType

DRAGONBALL = VmmType(
    name="dragonball",
    library_thread="db_vcpu",
    thread_names=r"db_vcpu(?P<vcpu>[0-9]{1,5})$",
    channels=GuestChannels(hybrid=lambda sandbox, argv, go, rs: [rs / sandbox / "root" / "kata.hvsock"]),
)
