"""How hypothesis runs: without a deadline (the machines are shared), and in CI always with the same examples."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("desk", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
