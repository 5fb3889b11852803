"""The features of vmpin: a folder each, of which the core names none (`vmpin/feature.py`)."""

NAMES = (
    "allocator",
    "isolation",
    "irqs",
    "scheduling",
    "network",
    "memory",
    "gather",
    "map",
    # After others: what explain quotes of a pod's author comes last.
    "cluster",
    "demo",
)
