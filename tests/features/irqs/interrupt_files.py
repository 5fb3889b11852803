"""Contents of /proc/interrupts as architectures print them, and of a machine of any size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: Linux 6.18 on x86 (a virtual machine), with rows of other machines; CPU 1 is offline.
X86 = b"""\
           CPU0       CPU2       CPU3
  0:          9          0          0   IO-APIC   2-edge      timer
  8:          1          0          0   IO-APIC   8-edge      rtc0
 16:          0         12          0   IO-APIC  16-fasteoi   ehci_hcd:usb1, i801 smbus
 30:          0          0          0 PCI-MSIX-0000:00:01.0   2-edge
 36:          0   14075175          7 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
142:          0          0       3100 IR-PCI-MSIX-0000:3b:00.0   3-edge      eth0-TxRx-3
150:          0          5          0 IR-PCI-MSIX-0000:5e:00.0   0-edge      vfio-msix[0](0000:5e:00.0)
NMI:          0          0          0   Non-maskable interrupts
LOC:   38190994   38980753          4   Local timer interrupts
RES:          1          2          3   Rescheduling interrupts
ERR:          0
MIS:          0
PIN:          0          6          0   Posted-interrupt notification event
"""
#: As Linux 6.1 to 6.18 print them, by their kernel/irq/proc.c and arch/*/kernel/irq.c (arm64, riscv: smp.c), and the
#: names in drivers/irqchip. A PCI device's chip has its address since 6.11.
ARM64 = b"""\
           CPU0       CPU1
 11:     254033     183942     GICv3  27 Level     arch_timer
 14:         12         15     GICv3  23 Level     arm-pmu
 48:          0          7     GICv3  72 Edge      eth 0 of board
 60:       4100          0   ITS-MSI 524289 Edge      nvme0q1
 61:          0         31   ITS-PCI-MSIX-0000:01:00.0   3 Edge      eth0-TxRx-3
 62:          0          0   ITS-fMSI 262144 Edge
 63:          5          0  GICv3-23  44 Level     arm-smmu-v3-evtq, arm-smmu-v3-gerror
IPI0:      8402      12853       Rescheduling interrupts
IPI5:        40         31       IRQ work interrupts
Err:          0
"""
RISCV64 = b"""\
           CPU0       CPU1
  5:       1034       2034  RISC-V INTC   5 Edge      riscv-timer
 12:         88          0  SiFive PLIC  10 Edge      ttyS0
 13:          3          0 APLIC-MSI-d000000.aplic  10 Level     ttyS4
 14:          0        730  PCI-MSIX-0000:00:02.0   1 Edge      virtio1-input.0
IPI1:        17         25  Function call interrupts
"""
PPC64LE = b"""\
           CPU0       CPU8
 16:       1022        900  XIVE-IPI   0 Edge      IPI-0
 21:         40          0  XIVE-IRQ 4099 Level     eth0
 22:          0         77 pSeries-PCI-MSI 1048578 Edge      mlx5_comp1@pci:0001:00:00.0
LOC:     190994      80753   Local timer interrupts for timer event device
BCT:          0          0   Broadcast timer interrupts for timer event device
LOC:         17         19   Local timer interrupts for others
SPU:          2          1   Spurious interrupts
PMI:          0          0   Performance monitoring interrupts
MCE:          0          0   Machine check exceptions
NMI:          0          0   System Reset interrupts
WDG:          0          0   Watchdog soft-NMI interrupts
DBL:          0          3   Doorbell interrupts
"""
S390X = b"""\
           CPU0       CPU1
EXT:      90210      80210
I/O:       2210       1210
AIO:        405        300
  3:          5          0  PCI-MSI  mlx5_async0@pci:0000:00:00.0
  4:          0        295  PCI-MSI  mlx5_comp0@pci:0000:00:00.0
CLK:      40210      30210   [EXT] Clock Comparator
EXC:        210        110   [EXT] External Call
EMS:         33         44   [EXT] Emergency Signal
VRT:          1          0   [EXT] Virtio
SCP:          4          0   [EXT] Service Call
DAS:       1210        910   [I/O] DASD
QAI:        400          5   [AIO] QDIO Adapter Interrupt
PCF:          5        295   [AIO] PCI Floating Interrupt
MSI:          5        295   [AIO] MSI Interrupt
NMI:          0          0   [NMI] Machine Check
"""
ALL = (X86, ARM64, RISCV64, PPC64LE, S390X)


def interrupts(cpus: Iterable[int], names: Mapping[int, str], counts: Mapping[tuple[int, int], int]) -> bytes:
    """/proc/interrupts of a machine, as x86 prints it.
    :param names: of the interrupts, by number. :param counts: by interrupt and CPU; 0 for any other."""
    cpus = list(cpus)
    width = max(3, len(str(max(names, default=0))))
    lines = [" " * (width + 8) + "".join(f"CPU{cpu:<8}" for cpu in cpus)]
    lines += [f"{number:>{width}}:" + "".join(f" {counts.get((number, cpu), 0):>10}" for cpu in cpus)
              + f" IR-PCI-MSIX-0000:3b:00.0 {number:>4}-edge      {name}" for number, name in names.items()]
    return "\n".join([*lines, f"ERR: {0:>10}", ""]).encode()
