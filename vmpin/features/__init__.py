"""The features of vmpin: a folder each, of which the core names none (`vmpin/feature.py`)."""

NAMES = (
    "allocator",
    "cluster",
    "isolation",
    "network",
    "demo",
)
