"""Cluster: what the API server is sent about a node, and all nodes of a cluster by what it has of them
(docs/kubernetes.md).

The options for all nodes are here, beside the parts: a status of this node alone loads no other module of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vmpin.feature import Feature, WatcherPart

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from vmpin.config.settings import Config
    from vmpin.daemon.watcher import Watcher

_ABOUT = """\
Every node by its NodePinning, which the node's reporter writes (docs/kubernetes.md), with the rights of your
kubeconfig; no command runs in a pod, and no pods are listed. A node whose object is older than twice its refresh is
stale. A node without an object is missing where the reporter's DaemonSet chooses it; this takes the rights to list
DaemonSets and nodes. Each of these options implies --all-nodes; -n then chooses among the pods of all nodes. Needs the
extra vmpin[kubernetes].
"""
_EXIT = """
exit code 3 with --all-nodes: a node is stale, missing or not ready, has unmanaged pods alone, or the API server does
not answer

"""
#: In place of what `verify --help` has of this node, in the plugin's.
_PLUGIN_VERIFY = """\
Check by each node's NodePinning that every thread is on its CPUs, and that no CPU collides.
"""
_PLUGIN_EXITS = """\
exit codes:
  0  no finding on the nodes that are shown
  1  a thread is misplaced, or CPUs collide
  2  the command line or the kubeconfig cannot be used, or the extra vmpin[kubernetes] is not installed
  3  a node is stale, missing or not ready, has unmanaged pods alone, or the API server does not answer

"""
_EXAMPLES = """\
of a cluster:
  vmpin {verb} --all-nodes
  vmpin {verb} --node NAME
  vmpin {verb} -n NAMESPACE -l topology.kubernetes.io/zone=a
  vmpin {verb} --all-nodes -o json
"""
#: In place of the examples in `vmpin --help`.
_PLUGIN_EXAMPLES = """\
every node of the cluster, from their NodePinnings (of the current context; --context and --kubeconfig for another):
  vmpin status               a line for each node, then the pods that are not in place
  vmpin status -n shop       of the pods of one namespace
  vmpin status --node NAME   of one node
  vmpin verify               exit code 1 if a thread is misplaced, or CPUs collide; 3 if a node is stale or missing

The other commands are about the machine that they are started on. `vmpin help kubernetes`: how to run them on a node.
"""


def _node_name(config: Config) -> str:
    name: str = config.of_features["kubernetes"].node
    return name


def _options(verb: str, parser: ArgumentParser) -> None:
    """The kubectl plugin is about the cluster: its help has nothing about this node."""
    plugin = parser.prog.startswith("kubectl ")
    if not verb and plugin:
        parser.epilog = _PLUGIN_EXAMPLES
    if verb not in ("status", "verify"):
        return
    before = "" if plugin else f"{parser.epilog}\n"
    if verb == "verify":
        before += _PLUGIN_EXITS if plugin else _EXIT
        parser.description = _PLUGIN_VERIFY if plugin else parser.description
    parser.epilog = before + _EXAMPLES.format(verb=verb)
    parser.set_defaults(run_instead=(lambda args: _run_on_all_nodes(verb, args), *parser.get_default("run_instead")))
    group = parser.add_argument_group("all nodes of a cluster", _ABOUT)
    group.add_argument("--all-nodes", action="store_true", default=plugin,
                       help=f"every node of the cluster{' (always so here)' if plugin else ', instead of this one'}")
    group.add_argument("--node", metavar="NAME", default="", help="one node of the cluster")
    group.add_argument("-l", "--selector", metavar="SELECTOR", default="", help="only nodes with these labels; a "
                       "NodePinning has its node's zone, region and pool, and vmpin.io/ready")
    group.add_argument("--kubeconfig", metavar="FILE", help="as kubectl's (default: KUBECONFIG, else "
                       "~/.kube/config, else the service account of this pod)")
    group.add_argument("--context", metavar="NAME", default="", help="a context of the kubeconfig")


def _run_on_all_nodes(verb: str, args: Namespace) -> Callable[[Namespace], int] | None:
    """The function of a verb for all nodes; None where no option implies them."""
    if not (args.all_nodes or args.node or args.selector or args.kubeconfig or args.context):
        return None
    from vmpin.features.cluster.verbs.all_nodes import VERBS

    return VERBS[verb]


def _watch(watcher: Watcher) -> WatcherPart:
    from vmpin.features.cluster.reporter_requests import ReporterRequests

    return ReporterRequests(watcher).part()


FEATURE = Feature(name="cluster", sections={"kubernetes": "kubernetes_settings.KubernetesSettings"},
                  verbs={"reporter": "verbs.reporter"}, service_verbs=("reporter",), options=_options,
                  node_name=_node_name, watch=_watch, checks="reporter_check.CHECKS")
