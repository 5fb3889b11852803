"""How all tests run: hypothesis without a deadline (the machines are shared), in CI always with the same examples."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("desk", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# A job in the background of a script is started with SIGINT ignored, and so would be each process that a test starts
# to see it end by Ctrl-C. What is caught here is the default in them again.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # likewise under nohup, which is to go on meaning that here
    signal.signal(signal.SIGHUP, lambda number, frame: None)
