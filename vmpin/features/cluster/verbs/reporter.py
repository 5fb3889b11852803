"""`vmpin reporter`: writes to the API server what the watcher of its node reports."""

import argparse

from vmpin.cli.verbs import Verbs, load_config, output_flag, verb
from vmpin.domain.terminal import number_of

_ABOUT = """\
Write to the API server of a cluster what the watcher of this node reports, until SIGTERM: an Event for each change
that a pod's owner should see, the condition vmpin.io/CPUsPinned of each pod in a VM, the object NodePinning of the
node (kubectl get nodepinnings), and two labels of the node; with kubernetes.nrt also the node's
NodeResourceTopology. It follows the watcher over RUN/status/vmpin.sock (RUN: paths.run, /run/vmpin) and can change
nothing there: without it, and without an API server, threads keep their places.
With allocate.live_annotations the watcher is handed the annotations by which pods ask for CPUs.

Runs in a pod of its own, as a user in the group watch.status_group, without capabilities; of the host it needs the
directory RUN/status alone. Needs the extra vmpin[kubernetes], and the name of the node (VMPIN_KUBERNETES_NODE, from
the pod's spec.nodeName). The section kubernetes of config/vmpin.yaml has what can be switched off.

A watcher that has not reported for a minute is shown as such (WatcherAway); one that is updated is back by then. At
SIGTERM all that was written stays, and the next reporter goes on from there; --withdraw removes it.
"""

_EPILOG = """\
examples:
  vmpin reporter                     in a pod, with the service account's token
  vmpin reporter --withdraw          after the chart was removed, where its Job could not: nothing is left
  vmpin reporter --set kubernetes.kubeconfig=$HOME/.kube/config \\
    --set kubernetes.node=$(hostname)

rights: pods list, watch; pods/status patch; nodes get, patch; events create, patch; nodepinnings.vmpin.io create,
patch; with kubernetes.nrt also noderesourcetopologies.topology.node.k8s.io get, create, patch. --withdraw: nodes get,
list, patch; nodepinnings list, delete; pods list; pods/status patch; with kubernetes.nrt noderesourcetopologies list,
patch, delete.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "reporter", "write what the watcher reports to the API server of a cluster", run,
                  about=_ABOUT, epilog=_EPILOG)
    parser.add_argument("--withdraw", action="store_true", help="remove all NodePinnings, conditions and labels of "
                        "the cluster (with kubernetes.nrt zones, too), and end; first delete the reporters, as they "
                        "would write again")
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    from vmpin import log
    config = load_config(args)
    log.setup(config.log.level, as_json=args.output == "json")
    if args.withdraw:
        from vmpin.features.cluster.reporter.api_server import ApiServer
        from vmpin.features.cluster.reporter.withdrawal import withdraw
        keys = config.of_features["kubernetes"]
        count = withdraw(ApiServer(keys.kubeconfig), keys)
        print(f"{number_of(count, 'object was')} changed or removed")
        return 0
    import gc

    from vmpin.features.cluster.reporter.service import Reporter
    gc.enable()
    Reporter(config).run()
    return 0
