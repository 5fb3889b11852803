"""The options of `vmpin status|verify|map` for every node of a cluster, and their help; each of these verbs loads
it."""

import argparse
from pathlib import Path

from vmpin.cli.this_program import KUBECTL, program

_ABOUT = """\
Every node by its NodePinning, which `vmpin reporter` writes (docs/kubernetes.md), with the rights of your kubeconfig;
no pod is entered or listed. A node whose object is older than twice its refresh is stale. One that the reporter's
DaemonSet chooses and that has no object is missing: to find it takes the rights to list DaemonSets and nodes. Each of
these options implies --all-nodes (-n where no SANDBOX is given). Needs the extra vmpin[kubernetes].
"""

_EXAMPLES = """\
of a cluster:
  vmpin {verb} --all-nodes
  vmpin {verb} --node NAME
  vmpin {verb} -n NAMESPACE -l topology.kubernetes.io/zone=a
  vmpin {verb} --all-nodes -o json
"""

#: In place of the examples in `vmpin --help`.
PLUGIN_EXAMPLES = """\
every node of the cluster, from their NodePinnings (of the current context; --context and --kubeconfig for another):
  vmpin status               a line for each node, then the pods that are not in place
  vmpin status -n shop       of the pods of one namespace
  vmpin map                  a sign for each CPU of each node
  vmpin map --node NAME      one node's CPUs with their owners
  vmpin verify               exit code 1 if a thread is misplaced, or CPUs collide; 3 if a node is stale or missing

The other commands are about the machine that they are started on. `vmpin help kubernetes`: how to run them on a node.
"""


def examples(verb: str, of_this_node: str) -> str:
    """Return the examples for the end of a verb's help. :param of_this_node: left out by the plugin, which is about
    the cluster."""
    return f"{of_this_node}\n" * (program() != KUBECTL) + _EXAMPLES.format(verb=verb)


def add_flags(parser: argparse.ArgumentParser) -> None:
    plugin = program() == KUBECTL
    group = parser.add_argument_group("all nodes of a cluster", _ABOUT)
    group.add_argument("--all-nodes", action="store_true", default=plugin,
                       help=f"every node of the cluster{' (always so here)' if plugin else ', instead of this one'}")
    group.add_argument("--node", metavar="NAME", default="", help="one node of the cluster")
    group.add_argument("-n", "--namespace", metavar="NAMESPACE", default="", help="only the pods of this "
                       "namespace; with SANDBOX that pod's, on this node")
    group.add_argument("-l", "--selector", metavar="SELECTOR", default="", help="only nodes with these labels; a "
                       "NodePinning has its node's zone, region and pool, and vmpin.io/ready")
    group.add_argument("--kubeconfig", metavar="FILE", type=Path, help="as kubectl's (default: KUBECONFIG, else "
                       "~/.kube/config, else the service account of this pod)")
    group.add_argument("--context", metavar="NAME", default="", help="a context of the kubeconfig")


def asked(args: argparse.Namespace) -> bool:
    namespace = args.namespace and getattr(args, "sandbox", None) is None
    return bool(args.all_nodes or args.node or namespace or args.selector or args.kubeconfig or args.context)
