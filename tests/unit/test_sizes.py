"""The size of the product: no package grows too large to read.

Lines of `*.py` and of the hook, in vmpin, guest and hooks; a subpackage counts apart from its package.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A package of more lines is two packages.
LARGEST = 2500
#: The operator's day, a figure and a reason each.
OPERATOR = {
    # A live view in the terminal: samples of all threads, rows of pods, threads and thieves, keys, the screen, batch.
    "top": 2_100,
    # Foreign seconds by the minute, and the report of them.
    # 300: a file in steps, bounded in cells; visits in turns; thieves without end share a name.
    # 60: foreign time by pod, --watch and a page that is replaced at once.
    "isolation": 2_150 + 300 + 60,
    # A VM's network devices and their path to the NIC; 300 of it: policy.vhost near, without entering a namespace.
    "network": 1_400,
    # Schemas, completion, manual pages and the rest of the command line.
    # 25: configuration values as the file has them, and that file on request.
    # 225: --watch for every verb that reads, the program's options after each verb, the nearest option to a wrong one.
    # 25: schemas of -o json, and printing them.
    # 130: tables and sentences in the width of the terminal; pods instead of ids in lines.
    # 550: completion in bash, zsh and fish of what the parsers have and of pods.
    # 300: manual pages, and the watcher as a service of systemd.
    # 50: tables without room leave columns out, break names, or are cut into several.
    "terminal": 25 + 225 + 25 + 130 + 550 + 300 + 50,
    # Pages that a phone and a colour-blind reader can read. 75: the map as data, and `vmpin version`'s.
    "map": 190 + 75,
    # A measured demonstration beside noise: a guest, its memory, three placements, and the result as text and picture.
    "worth": 980,
    # Links by namespace and bridge; a pod's own screen; names and counts in what a person reads.
    # 34: ages in explain, and the decision of policy.vhost: near.
    "screens": 150 + 34,
    # Contention, refused masks, disputed annotations and disagreements by pod, for the alerts.
    "by pod": 42,
    # The help's texts at the terminal's width (cli/shell/help_layout).
    "help": 115,
}
#: What all of them had before they were sorted into packages. A feature that needs more raises it in its own commit,
#: by what it needs; a change that adds nothing for users does not. 29,328 before; 29,297 when the suite was split.
#: 120: the status socket, `follow`, groups by number, loading a changed configuration file. 44: pods' data in the
#: status, and out of `vmpin gather`. 21: distances of NUMA nodes, what the running kubelet sets of its zones. 55:
#: status, verify and map of every node: their options, and forms of a map.
#: 34: peers of the status socket that ask without end do not hold up the watcher. 30: sockets, kinds of cores, nodes
#: of memory and of devices in the topology.
#: 14: the section `allocate`, and messages of NRI with which a plugin gives CPUs.
#: 14: the doctor reads the kubelet's reservations and finds the CRI sockets.
#: 122: the plugin's answers can give CPUs, and placement follows what is given.
#: 76: the watcher's allocator, where there is one: its requests, its metrics, what it explains.
#: 16: its ledger is given up when it is switched off.
#: 45: scenarios with the allocator's events, and what they show.
#: 95: `vmpin help TOPIC`, `vmpin version`, the nearest command to one that does not exist.
#: 140: one sandbox in full begins with its verdict; ages, plurals, pods instead of ids.
#: 170: names of pods and containers as arguments of each verb that takes a sandbox.
#: 6: scenarios with pods whose CPUs the allocator gives out.
#: 2: NRI's messages have a container's devices and environment.
#: 60: the map of a node whose CPUs the allocator gives out.
#: 8: changed annotations on their way to the allocator: a task, a request, two keys that need each other.
#: 24: verify and audit know what the allocator has given out.
#: 8: an answer about a search that takes long is given in a thread of its own.
#: 66, before the last number: default_vcpus of Kata's configuration, for the allocator.
#: 26, the last but one: the pods that a runtime runs, by CRI, for the allocator.
#: 48, the last but one: drift is judged after the reports that wait are read. 56: docstrings that are whole
#: sentences, with the callers. 14, at the end: pauses that were the allocator's (its number is less by 26), and
#: clocks and limits that are given as parameters. 4, the last but one: verify reports that containers' CPUs were
#: compared. 6, the last but two: two packages' code is in modules (transport.channel, node_map). 4, the last: what
#: shows no age does not load datetime, a millisecond of the first pass.
TOTAL = 29_328 + sum((120, 44, 21, 55, 34, 30, 14, 14, 122, 45, 76, 16, 170, 6, 2, 140, 60, 8, 95, 24, 8,
                      *OPERATOR.values(), 66, 26, 48, 56, 14, 6, 4, 4))
#: What a node in a cluster needs besides: what the reporter is sent, and the reporter, which no node without an API
#: server runs. Counted apart, so that the number above goes on to hold what pins.
CLUSTER = ("vmpin/kube", "vmpin/reporter", "vmpin/fleet", "vmpin/reports/map/node_pictures.py",
           "vmpin/cli/reporter.py", "vmpin/cli/cluster", "vmpin/daemon/followers.py",
           "vmpin/status/survey.py", "vmpin/host/socket_peers.py", "vmpin/host/socket_streams.py",
           "vmpin/daemon/handed_pods.py", "vmpin/config/kubernetes_settings.py")
#: 280: pods' data for the node (kube/untrusted_pod, daemon/handed_pods, reporter/pod_handover).
#: 310 more: NodeResourceTopology, and annotations of pods.
#: 1,105: every node at one glance (fleet, cli/cluster, the map of other nodes).
#: 48: connections that are lost without a word are noticed; what was forbidden for a moment is soon tried again.
#: 40: what is refused for one object or namespace holds up no other; refused writes are tried ever less often;
#: a withdrawal waits for no node that is down. 6: the help of the kubectl plugin has no arguments about one node.
#: 2: `-n` is a pod's namespace on this node, too.
#: 77: the annotations that ask for CPUs, for the allocator (kube/asked_annotations).
#: 26: NodeResourceTopology by the ledger of the allocator.
#: 12: plurals in the condition and in the tables. 12: callers in docstrings.
#: 16, the last number: what the API server is sent names pods and containers in place of ids (status/survey).
#: 8, the third number: docstrings that are whole sentences.
CLUSTER_TOTAL = 2_400 + 12 + 8 + 280 + 310 + 1_105 + 48 + 40 + 6 + 2 + 77 + 26 + 12 + 16
#: What gives CPUs out (`allocate.mode`), counted apart as well: a node whose kubelet does that loads none of it.
ALLOCATOR = ("vmpin/allocation", "vmpin/doctor/allocation_checks.py",
             "vmpin/host/allocator_topology.py", "vmpin/config/allocate_settings.py",
             "vmpin/config/scenario_topology.py", "vmpin/config/scenario_events.py",
             "vmpin/config/scenario_allocation.py", "vmpin/config/scenario_pods.py", "vmpin/domain/granted_cpus.py",
             "vmpin/sources/nri/call_answers.py", "vmpin/sources/nri/container_requests.py",
             "vmpin/status/allocation_report.py", "vmpin/status/allocation_metrics.py", "vmpin/cli/allocator",
             "vmpin/reports/ledger_holders.py",
             "vmpin/reconcile/cpu_allocator.py", "vmpin/reconcile/ledger_file.py",
             "vmpin/reconcile/ledger_release.py", "vmpin/reconcile/vm_size.py",
             "vmpin/daemon/allocating.py", "vmpin/daemon/allocation_answers.py",
             "vmpin/daemon/allocator")
#: 18: a VM has no more vCPUs than slots.
#: 60: peers' annotations as the peers read them, and preferred isolated CPUs.
#: 146: CPUs near a container's own devices, found when it is created and kept with its grant.
#: 95: pods in scenarios; the map by the ledger, and in how many pieces the free CPUs are.
#: 16: the doctor counts isolated CPUs, and the one that the pool keeps.
#: 41: refusals with their kinds, which were guessed from their words.
#: 19: a refused resize names the key that gave the container its CPUs.
#: 14: text of annotations is checked, and shown escaped.
#: 11: a required alignment in the configuration. 12: Crane's topology-awareness does not loosen it.
#: 281: changed annotations change containers that run (allocation/live, daemon/allocator).
#: 15: what followers of the watcher get of the ledger.
#: 88: what was given out, for verify and audit.
#: 33: the search on 16 nodes in 8 sockets.
#: 32: cgroups are read back at a container's start; a long explanation holds up no other answer.
#: 14: the node after a scenario's last event, for its map. 8: a VM's default_vcpus from Kata's configuration.
#: 26: the pods of the ledger, for completion too (moved from cli/explain). 14: callers in docstrings.
#: 26: an update that a runtime refuses holds up no other one. 14: plurals in refusals.
#: 10: notes of a scenario's containers. 24: containers that were missed, and then the ledger lost.
#: 104: pods that end unreported. 8, the second number: docstrings that are whole sentences.
#: 12: a container that never started. 10: refused requests by pod, for the alert.
#: 56: sets of which no CPU is online, groups' names and CPUs, free CPUs by node, and a ledger that is no file.
#: 52: resizes, dies and QoS classes in scenarios, what is left alone, and for the doctor the CPUs of groups.
ALLOCATOR_TOTAL = (210 + 8 + 5_000 + 60 + 146 + 95 + 16 + 41 + 19 + 14 + 11 + 281 + 15 + 12 + 88 + 33 + 32 + 26 + 8
                   + 14 + 12 + 10 + 56 - 26 + 52)

FILES = [*(path for top in ("vmpin", "guest", "hooks") for path in sorted((ROOT / top).rglob("*.py"))),
         ROOT / "hooks" / "vmpin-hook"]
PACKAGES = sorted({path.parent for path in FILES if path.name != "vmpin-hook"})


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(ROOT)))
def test_a_package_can_be_read(package: Path) -> None:
    assert sum(lines(path) for path in FILES if path.parent == package) < LARGEST


def of_the_cluster(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / part) for part in CLUSTER)


def of_the_allocator(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / part) for part in ALLOCATOR)


def test_the_product_has_not_grown_unnoticed() -> None:
    assert sum(lines(path) for path in FILES if not of_the_cluster(path) and not of_the_allocator(path)) < TOTAL


def test_what_gives_cpus_out_has_not_grown_unnoticed() -> None:
    assert sum(lines(path) for path in FILES if of_the_allocator(path)) < ALLOCATOR_TOTAL


def test_what_a_cluster_needs_has_not_grown_unnoticed() -> None:
    assert sum(lines(path) for path in FILES if of_the_cluster(path)) < CLUSTER_TOTAL
