"""The interrupts of exclusive CPUs: those that they take, and moving those of devices to other CPUs.

interrupt_table, irq_counts, irq_plan, irq_text and irq_checks are pure; irq_files, originals_file and irqbalance are
the adapters; irq_mover carries a plan out, irqs_watcher_part calls it.
"""
