"""Reads the NodePinnings of a cluster, page by page, and which nodes should have one.

It makes one list of NodePinnings, and reads the DaemonSets with the reporter's labels and the nodes that they choose,
where the user may list those: a right that is missing is named in `Fleet.unknown`. A DaemonSet chooses nodes by its
pod template and their labels and taints, as its controller decides it: node selector, required node affinity,
tolerations (k8s.io/component-helpers scheduling/corev1, and AddOrUpdateDaemonPodTolerations in k8s.io/kubernetes
pkg/controller/daemon/util). Pods are not read: that would take the right to see all pods of the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from vmpin.bounded import MAX_INT64, checked_parse
from vmpin.errors import UsageError
from vmpin.features.cluster.cluster_errors import AnswerTooLong, ClusterError
from vmpin.features.cluster.fleet.node_record import Fleet, NodeRecord, fleet_of, record_of_pinning
from vmpin.features.cluster.kube.api_request import ApiRequest, items_of_pages
from vmpin.features.cluster.kube.identifiers import GROUP, LABEL_READY, PLURAL, POOLS, REGION, ZONE
from vmpin.features.cluster.kube.node_pinning import pinning_path
from vmpin.named_tuple import NamedTuple

#: Objects of a page; the next number where a page is too large.
PAGES = (50, 10, 1)
#: Bytes of a page. One of 50 nodes with 50 pods each has 2 MB.
LARGEST_PAGE = 6 << 20
_DAEMON_SETS, _NODES = "/apis/apps/v1/daemonsets", "/api/v1/nodes"
#: By path: the resource and its API group, as a ClusterRole has them.
_RULES = {pinning_path(): (GROUP, PLURAL), _DAEMON_SETS: ("apps", "daemonsets"), _NODES: ("", "nodes")}

#: The labels of the chart.
DAEMON_SET_SELECTOR = "app.kubernetes.io/name=vmpin,app.kubernetes.io/component=reporter"
#: Every DaemonSet's pods tolerate these, whatever their effect.
_ALWAYS = frozenset(f"node.kubernetes.io/{name}" for name in (
    "not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"))
#: The labels that a NodePinning has of its node.
LABELS = (ZONE, REGION, *POOLS, LABEL_READY)
_KEY = re.compile(r"\s*!?\s*([A-Za-z0-9._/-]*)")

#: Sends a request and returns its answer as JSON. :param: the most bytes of it. :raises ClusterError: it failed.
#: :raises AnswerTooLong: the answer has more bytes.
Send = Callable[[ApiRequest, int], Any]


def read_fleet(send: Send, clock: Callable[[], float], trim: Callable[[NodeRecord], NodeRecord], node: str = "",
               selector: str = "", namespace: str = "") -> Fleet:
    """Read the chosen NodePinnings, and which nodes should have one.
    :param node: a name. :param selector: one of labels, as kubectl has it; "" for all. :param namespace: the pods'.
    :param trim: keeps of a record as much as is shown, to save memory.
    :raises ClusterError: where the NodePinnings cannot be listed; with a hint. :raises UsageError: for a selector."""
    check_selector(selector)
    # First the nodes: one that joins in between is not missing.
    expected, unknown, unchecked = {node}, "", ""
    if not node:
        expected = set()
        try:
            placements = list(_placements(send))
            unchecked = "" if placements else "there is no DaemonSet of the reporter"
            for placement in placements:
                both = ",".join(filter(None, (placement.selector, selector)))
                expected |= {str(item["metadata"]["name"]) for item in _items(send, _NODES, both)
                             if placement.chooses(item)}
        except ClusterError as err:
            if err.status != 403:
                raise
            unknown = f"{err}; {err.hint}"
    records = [trim(record_of_pinning(item).within(namespace))
               for item in _items(send, pinning_path(), selector, node)]
    return fleet_of(records, expected, clock(), unknown, unchecked)


def check_selector(selector: str) -> None:
    """Refuse a label of nodes that no NodePinning has: all nodes would count as missing. :raises UsageError:"""
    for part in re.split(r",(?![^(]*\))", selector) if selector else ():
        match = _KEY.match(part)
        if match is None or match[1] not in LABELS:
            raise UsageError(f"-l {selector}: {part.strip()!r} is about a label that NodePinnings do not have",
                             f"theirs are {', '.join(LABELS)}")


def hinted(err: ClusterError, path: str, selector: str) -> ClusterError | UsageError:
    """The error of a list, with a hint."""
    if err.status == 404 and path == pinning_path():
        return ClusterError("vmpin's chart is not installed in this cluster: it has no NodePinnings", 404, hint=(
            "docs/kubernetes.md has how to install it; --context NAME chooses another cluster"))
    if err.status == 400 and selector:
        return UsageError(f"-l {selector}: {err}", f"e.g. -l {ZONE}=a, or -l '{ZONE} in (a, b)'")
    if err.status == 403:
        group, resource = _RULES[path]
        rule = f'{{apiGroups: ["{group}"], resources: [{resource}], verbs: [list]}}'
        return ClusterError(str(err), 403, hint=f"it takes a ClusterRole with the rule {rule}, bound to you by a "
                                                "ClusterRoleBinding; the chart's are vmpin-view and vmpin-verify")
    hint = ("log in again: the API server does not accept these credentials" if err.status == 401 else
            f"try again in {err.after or 5:.0f} s: the API server is overloaded or starting"
            if err.status == 429 or err.status >= 500 else
            "" if err.status else "is it the right cluster (--context), and can it be reached? kubectl cluster-info")
    return ClusterError(str(err), err.status, err.after, hint)


def _placements(send: Send) -> Iterator[ReporterPlacement]:
    try:
        for item in _items(send, _DAEMON_SETS, DAEMON_SET_SELECTOR):
            yield placement_of(item)
    except ValueError as err:
        raise ClusterError(f"GET {_DAEMON_SETS}: {err}") from err


def _items(send: Send, path: str, selector: str = "", name: str = "") -> Iterator[Mapping[str, Any]]:
    """List the objects at a path, page by page. :param name: of the only object; "" for all.
    :raises ClusterError: :raises UsageError: with a hint."""
    fixed = [("labelSelector", selector)] * bool(selector) + [("fieldSelector", f"metadata.name={name}")] * bool(name)

    def read(more: Iterable[tuple[str, str]]) -> Any:
        try:
            return _page(send, path, [*fixed, *more])
        except ClusterError as err:
            raise hinted(err, path, selector) from err

    return items_of_pages(path, read)


def _page(send: Send, path: str, query: list[tuple[str, str]]) -> Any:
    for count in PAGES:
        try:
            return send(ApiRequest("GET", path, query=(*query, ("limit", str(count)))), LARGEST_PAGE)
        except AnswerTooLong:
            if count == PAGES[-1]:
                raise
    raise AssertionError


def _number(text: str) -> int:
    """A label's or an expression's number (k8s.io/component-helpers/scheduling/corev1/nodeaffinity).
    :raises ValueError: it is no number."""
    number = checked_parse(text.removeprefix("-"), MAX_INT64)
    return -number if text.startswith("-") else number


_OPERATORS: dict[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, wanted: value in wanted,
    "NotIn": lambda value, wanted: value not in wanted,
    "Exists": lambda value, wanted: value is not None,
    "DoesNotExist": lambda value, wanted: value is None,
    "Gt": lambda value, wanted: value is not None and _number(value) > _number(wanted[0]),
    "Lt": lambda value, wanted: value is not None and _number(value) < _number(wanted[0]),
}


class ReporterPlacement(NamedTuple):
    """The rules by which a DaemonSet's pods choose nodes. `terms` is None without a required affinity."""

    labels: Mapping[str, str]
    terms: Sequence[Mapping[str, Any]] | None
    tolerations: Sequence[Mapping[str, Any]]

    @property
    def selector(self) -> str:
        """The node selector as the API server takes it."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.labels.items()))

    def chooses(self, node: Mapping[str, Any]) -> bool:
        """Whether the reporter should run on a node. :param node: as JSON; a malformed Node is not chosen."""
        try:
            labels = node["metadata"].get("labels") or {}
            taints = (node.get("spec") or {}).get("taints") or ()
            return (all(labels.get(key) == value for key, value in self.labels.items())
                    and (self.terms is None or any(_term_holds(term, node["metadata"]) for term in self.terms))
                    and all(self._tolerates(taint) for taint in taints))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError):
            return False

    def _tolerates(self, taint: Mapping[str, Any]) -> bool:
        return (taint["effect"] == "PreferNoSchedule" or taint["key"] in _ALWAYS
                or any(_covers(toleration, taint) for toleration in self.tolerations))


def placement_of(daemon_set: Mapping[str, Any]) -> ReporterPlacement:
    """Read a DaemonSet from its JSON. :raises ValueError: it is no DaemonSet."""
    try:
        spec = daemon_set["spec"]["template"]["spec"]
        affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution")
        return ReporterPlacement(dict(spec.get("nodeSelector") or {}),
                                 affinity and tuple(affinity.get("nodeSelectorTerms") or ()),
                                 tuple(spec.get("tolerations") or ()))
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError(f"is no DaemonSet: {err!r}") from err


def _term_holds(term: Mapping[str, Any], meta: Mapping[str, Any]) -> bool:
    """An empty term holds for no node."""
    labels = meta.get("labels") or {}
    requirements = [
        *((expression, labels.get(expression["key"])) for expression in term.get("matchExpressions") or ()),
        *((field, meta["name"]) for field in term.get("matchFields") or ())]  # metadata.name is the only field
    return bool(requirements) and all(_OPERATORS[requirement["operator"]](value, requirement.get("values") or ())
                                      for requirement, value in requirements)


def _covers(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if (toleration.get("effect") or taint["effect"]) != taint["effect"]:
        return False
    if (toleration.get("key") or taint["key"]) != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")
