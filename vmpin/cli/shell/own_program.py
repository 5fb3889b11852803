"""The path of this vmpin, for what has to start it again: a shell's completion, the systemd unit."""

import os
import shutil
import sys


def own_program() -> list[str]:
    """The command that starts this program from anywhere: its absolute path, by the link that was typed or that is in
    PATH; Python's, with the module, where it was started as such."""
    name = sys.argv[0]
    found = shutil.which(name)
    if found is None or os.path.basename(found).endswith(".py"):
        return [sys.executable, "-P", "-m", "vmpin.cli"]  # -P: nothing is imported from the working directory
    path = os.path.abspath(found)
    ours = os.path.join(os.path.dirname(path), "vmpin")  # beside kubectl's plugin, which is the same program
    return [ours if os.access(ours, os.X_OK) else path]
