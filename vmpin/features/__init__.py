"""The features of vmpin: a folder each, of which the core names none (`vmpin/feature.py`)."""

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
    # Before what listens to its samples.
    "proof",
    "isolation",
    "irqs",
    "scheduling",
    "network",
    "memory",
    "map",
    # After others: what explain quotes of a pod's author comes last.
    "cluster",
    "demo",
)
