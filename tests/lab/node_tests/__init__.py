"""What runs in the node, as root, under its own pytest. On any other machine nothing here is collected."""

import os

if "VMPIN_LAB_NODE" not in os.environ:
    raise ImportError("these tests run in the node: python -m lab run -- tests/lab/node_tests/… (docs/testing.md)")
