"""A VM whose guest is firmware.S: its vCPUs are busy or sleep as the host writes into its memory.

Its threads are those of the demo's VM (vm).
"""

from vmpin.errors import VmpinError
from vmpin.features.demo.firmware import rom
from vmpin.features.demo.guest_memory import SIZE, GuestMemory
from vmpin.features.demo.vm import VCPUS, DemoVm


class ProbeVm(DemoVm):
    """vCPU 0 boots the others and halts, as an idle kernel does."""

    memory: GuestMemory

    def _guest(self) -> list[str]:
        image = self.directory / "rom"
        image.write_bytes(rom())
        return ["-machine", "q35,memory-backend=ram", "-m", f"{SIZE >> 20}M", "-bios", str(image),
                "-object", f"memory-backend-memfd,id=ram,size={SIZE >> 20}M,share=on"]

    def _runs(self) -> bool:
        try:
            memory = GuestMemory(self.pid)
        except (VmpinError, OSError):
            return False  # QEMU has not made it yet, or has ended
        if memory.ready(VCPUS):
            self.memory = memory
            return True
        memory.close()
        return False
