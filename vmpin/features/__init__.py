"""The features of vmpin: a folder each, of which the core names none (`vmpin/feature.py`). `common` has what several
of them use."""

NAMES = (
    # Before others: its checks come first.
    "doctor",
    # Before those whose keys it reads.
    "scenarios",
    "allocator",
    "installer",
    "logs",
    "shell",
    "metrics",
    # Before isolation, which receives its samples.
    "proof",
    "isolation",
    "irqs",
    "scheduling",
    "runc_repair",
    "network",
    "memory",
    "map",
    # After others: its options and examples end the help of a verb.
    "cluster",
    "demo",
)
