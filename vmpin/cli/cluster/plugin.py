"""The name of this program: its own, or that of the kubectl plugin, which is the same program by another name."""

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
