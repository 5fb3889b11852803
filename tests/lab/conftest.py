"""Two sides: on the build machine test_lab.py, which boots the node; in the node node_tests/, and only there."""

from __future__ import annotations

import os

collect_ignore = ["test_lab.py"] if os.environ.get("VMPIN_LAB_NODE") else ["node_tests"]
