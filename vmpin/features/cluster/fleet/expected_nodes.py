"""Which nodes should have a NodePinning: those that the reporter's DaemonSet has a pod on.

From the DaemonSet's pod template and the nodes' labels and taints, as its controller decides it: node selector,
required node affinity, tolerations (k8s.io/component-helpers scheduling/corev1, and AddOrUpdateDaemonPodTolerations in
k8s.io/kubernetes pkg/controller/daemon/util). The pods themselves are not read: that would take the right to see all
pods of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vmpin.bounded import MAX_INT64, checked_parse

#: The labels of the chart.
DAEMON_SET_SELECTOR = "app.kubernetes.io/name=vmpin,app.kubernetes.io/component=reporter"
#: Every DaemonSet's pods tolerate these, whatever their effect.
_ALWAYS = frozenset(f"node.kubernetes.io/{name}" for name in (
    "not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"))


def _number(text: str) -> int:
    """A label's or an expression's number (k8s.io/component-helpers/scheduling/corev1/nodeaffinity).
    :raises ValueError: for none."""
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
    """What a DaemonSet's pod template asks of a node. `terms` is None without a required affinity."""

    labels: Mapping[str, str]
    terms: Sequence[Mapping[str, Any]] | None
    tolerations: Sequence[Mapping[str, Any]]

    @property
    def selector(self) -> str:
        """The node selector as the API server takes it."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.labels.items()))

    def chooses(self, node: Mapping[str, Any]) -> bool:
        """Whether the reporter should run on a node. :param node: a Node as JSON; one that is none is not chosen."""
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
                or any(_covers(each, taint) for each in self.tolerations))


def placement_of(daemon_set: Mapping[str, Any]) -> ReporterPlacement:
    """Read from a DaemonSet the rules by which its pods choose nodes. :raises ValueError: for what is no DaemonSet."""
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
    asked = [*((each, labels.get(each["key"])) for each in term.get("matchExpressions") or ()),
             *((each, meta["name"]) for each in term.get("matchFields") or ())]  # metadata.name is the only one
    return bool(asked) and all(_OPERATORS[each["operator"]](value, each.get("values") or ()) for each, value in asked)


def _covers(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if (toleration.get("effect") or taint["effect"]) != taint["effect"]:
        return False
    if (toleration.get("key") or taint["key"]) != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")
