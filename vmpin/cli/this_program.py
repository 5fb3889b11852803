"""This program: its name (as it is, or as kubectl's plugin, which is the same program), its path, its version."""

import argparse
import os
import re
import sys

#: The name under which kubectl starts this program as its plugin.
KUBECTL = "kubectl vmpin"


def program() -> str:
    """The name it was started by: kubectl runs `kubectl-vmpin` for `kubectl vmpin`."""
    return KUBECTL if os.path.basename(sys.argv[0]).startswith("kubectl-vmpin") else "vmpin"


def about_this_node(text: str) -> str:
    """The help of an argument that is about this node: the plugin, which is about the cluster, lists none of them."""
    return argparse.SUPPRESS if program() == KUBECTL else text


def named(text: str) -> str:
    """A help text with the commands in it as they are typed."""
    return re.sub(r"(^ +|`)vmpin ", rf"\1{program()} ", text, flags=re.MULTILINE)


def own_program() -> list[str]:
    """The command that starts this program from anywhere: its absolute path, by the link that was typed or that is in
    PATH; Python's, with the module, where it was started as such."""
    import shutil
    name = sys.argv[0]
    path = shutil.which(name)
    if path is None or os.path.basename(path).endswith(".py"):
        return [sys.executable, "-P", "-m", "vmpin.cli"]  # -P: nothing is imported from the working directory
    path = os.path.abspath(path)
    ours = os.path.join(os.path.dirname(path), "vmpin")  # beside kubectl's plugin, which is the same program
    return [ours if os.access(ours, os.X_OK) else path]


def version_line() -> str:
    """The version as `vmpin --version` prints it."""
    from vmpin.install.own_version import installed_version
    version = installed_version()
    return "vmpin, run without having been installed" if version is None else f"vmpin {version}"
