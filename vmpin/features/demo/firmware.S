# The firmware, and the whole guest, of the VMs of `vmpin demo --noise`. The boot vCPU starts the others and halts. Each
# of the others then reads the time stamp counter in a loop (mode 1: a busy container), or sleeps by its APIC timer again
# and again (any other mode). It records pairs (counter before, ticks until it ran again) in a ring that the host reads.
# No instruction here is one that KVM cannot emulate: without hardware virtualization it emulates all of them.
#
# firmware.py has the bytes. tests/unit/demo/test_firmware.py assembles this file and compares:
#     as --32 firmware.S -o firmware.o
#     ld -m elf_i386 -Ttext 0xfffffe00 --oformat binary -o firmware.bin firmware.o

        .set BLOCKS, 0x10000            # control block of vCPU N: BLOCKS + 256 * N. Offsets in it (probe_vm.py):
        .set MODE, 0                    # written by the host
        .set READY, 4                   # 1 once the vCPU runs
        .set NOW, 8                     # the counter, 64 bits
        .set HEAD, 16                   # pairs recorded so far
        .set LEAST, 20                  # written by the host: shorter gaps of a busy vCPU are not recorded, in ticks
        .set SLEEP, 24                  # written by the host: a sleep in ns, as the APIC timer has 1 GHz in KVM and QEMU
        .set APIC, 0xfee00000
        .set IDT, 0x1000
        .set VECTOR, 0x20

        .globl  _start
_start:
        .code32
protected:
        movw    $16, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movl    APIC + 0x20, %esi       # APIC id << 24: the number of the vCPU, as each socket has one core
        shrl    $16, %esi
        leal    0x9100(%esi), %esp
        addl    $BLOCKS, %esi           # from here on: this vCPU's control block
        lidtl   idtr
        cmpl    $BLOCKS, %esi
        je      first

        movl    $10000000, SLEEP(%esi)
        movl    $0x1ff, APIC + 0xf0     # enabled; spurious vector 0xff
        movl    $VECTOR, APIC + 0x320   # timer: one shot
        movl    $0xb, APIC + 0x3e0      # divided by 1
        incl    READY(%esi)

sleep:  rdtsc
        movl    %eax, %ebx              # ecx:ebx: the counter when this sleep began
        movl    %edx, %ecx
        movl    SLEEP(%esi), %eax
        movl    %eax, APIC + 0x380
        sti
nap:    hlt
        jmp     nap
timer:  addl    $12, %esp               # in place of an iret, which KVM does not emulate; interrupts are off now
        movl    $0, APIC + 0xb0         # end of interrupt
        call    elapsed
        call    record
        cmpl    $1, MODE(%esi)
        jne     sleep
        rdtsc
busy:   movl    %eax, %ebx              # ecx:ebx: the counter at the previous turn
        movl    %edx, %ecx
        call    elapsed
        jnz     long
        cmpl    LEAST(%esi), %ebp
        jb      short
long:   call    record
short:  cmpl    $1, MODE(%esi)
        je      busy
        jmp     sleep

elapsed:                                # edx:eax = the counter; edi:ebp = edx:eax - ecx:ebx; zero flag: edi is 0
        rdtsc
        movl    %eax, NOW(%esi)
        movl    %edx, NOW + 4(%esi)
        movl    %edx, %edi
        movl    %eax, %ebp
        subl    %ebx, %ebp
        sbbl    %ecx, %edi
        ret

record: pushl   %eax
        pushl   %edx
        movl    %esi, %eax              # the ring of vCPU N: 2 MiB from 2 MiB * (N + 1), so 2^17 pairs
        subl    $BLOCKS - 0x100, %eax
        shll    $13, %eax
        movl    HEAD(%esi), %edx
        andl    $0x1ffff, %edx
        shll    $4, %edx
        addl    %edx, %eax
        movl    %ebx, (%eax)
        movl    %ecx, 4(%eax)
        movl    %ebp, 8(%eax)
        movl    %edi, 12(%eax)
        incl    HEAD(%esi)              # after the pair: the host reads up to it
        popl    %edx
        popl    %eax
        ret

first:  movl    $timer, %eax            # an interrupt gate
        movw    %ax, IDT + 8 * VECTOR
        movw    $8, IDT + 8 * VECTOR + 2
        movw    $0x8e00, IDT + 8 * VECTOR + 4
        shrl    $16, %eax
        movw    %ax, IDT + 8 * VECTOR + 6
        movb    $0xea, 0x8000           # at 0x8000, where the others start: ljmp 0xf000:real
        movl    $0xf000fe00 + (real - _start), 0x8001
        incl    READY(%esi)
        movl    $0xc4500, APIC + 0x300  # INIT to all others
        movl    $0xc4608, APIC + 0x300  # SIPI: start at 0x8000
halt:   hlt
        jmp     halt

        .balign 8
gdt:    .quad   0, 0x00cf9b000000ffff, 0x00cf93000000ffff
gdtr:   .word   23
        .long   gdt
idtr:   .word   8 * VECTOR + 7
        .long   IDT

        .code16
real:   cli
        lgdtl   %cs:0xfe00 + (gdtr - _start)
        movl    %cr0, %eax
        orb     $1, %al
        movl    %eax, %cr0
        ljmpl   $8, $protected

        .org    0x1f0                   # at 0xfffffff0, where the boot vCPU starts
        jmp     real
        .org    0x200
