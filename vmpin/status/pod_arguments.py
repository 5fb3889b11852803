"""Which sandbox or container a person means by POD, NAMESPACE/POD, POD/CONTAINER, NAMESPACE/POD/CONTAINER, or by the
first digits of the id of either.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vmpin.domain.terminal import printable, short_id
from vmpin.errors import UsageError
from vmpin.named_tuple import NamedTuple

#: Choices that an error lists.
_LISTED = 8


class NamedSandbox(NamedTuple):
    """A sandbox, or another thing with an id, by its names: `namespace` and `pod` are "" where they are unknown."""

    #: NAMESPACE/POD, and of a container NAMESPACE/POD/CONTAINER, where no id is known.
    id: str
    namespace: str = ""
    pod: str = ""
    #: (id, name) of each container.
    containers: Sequence[tuple[str, str]] = ()

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.pod}" if self.pod else short_id(self.id)


class PodMatch(NamedTuple):
    """`container` is the id of the container that was named, "" where a whole sandbox was."""

    sandbox: NamedSandbox
    container: str = ""

    @property
    def title(self) -> str:
        """The name as it can be typed again."""
        if not self.container:
            return self.sandbox.title
        return f"{self.sandbox.title}/{dict(self.sandbox.containers)[self.container] or short_id(self.container)}"


def matches_of(text: str, namespace: str, among: Iterable[NamedSandbox]) -> list[PodMatch]:
    """Everything that the text may mean: a whole name or id, else the beginning of an id. The beginning of a pod's
    name means nothing: once that pod has ended, another pod of that beginning would be unpinned in its place.

    :param namespace: of the pod; "" for any."""
    sandboxes = [sandbox for sandbox in among if not namespace or sandbox.namespace == namespace]
    for whole in True, False:
        for search in _by_name, _container_by_id:
            if matches := {(match.sandbox.id, match.container): match for match in search(text, sandboxes, whole)}:
                return list(matches.values())
    return []


def only_match(text: str, namespace: str, among: Iterable[NamedSandbox], noun: str = "VM sandbox",
               listing: str = "vmpin status") -> PodMatch:
    """The only sandbox or container that the text may mean.

    :param noun: for the error: what the text should name. :param listing: the command that lists them.
    :raises UsageError: for none, and for several, which are listed."""
    candidates = list(among)
    matches = matches_of(text, namespace, candidates)
    if len(matches) == 1:
        return matches[0]
    where = f" in namespace {namespace!r}" if namespace else ""
    if not matches:
        pod = text.rpartition("/")[2]
        near = [sandbox.title for sandbox in candidates if pod and sandbox.pod.startswith(pod)][:_LISTED]
        hint = printable(f"did you mean {' or '.join(near)}? ") if near else ""
        raise UsageError(f"no {noun} {text!r} is on this node{where}", f"{hint}`{listing}` lists them")
    titles = [match.title for match in matches]
    listed = [title if titles.count(title) == 1 else f"{title} ({short_id(match.sandbox.id)})"
              for title, match in zip(titles, matches, strict=True)]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    raise UsageError(printable(f"{text!r} may be {', '.join(listed[:_LISTED])}{more}"),
                     "name one of them, or give more digits of its id")


def joined(sandboxes: Iterable[NamedSandbox], pods: Iterable[NamedSandbox]) -> list[NamedSandbox]:
    """Sandboxes and pods, each id once, as the sandbox. A pod without an id gives its containers to the sandboxes and
    pods of its name, if there are any."""
    by_id = {pod.id: pod for pod in (*pods, *sandboxes)}
    for nameless in [pod for pod in by_id.values() if "/" in pod.id]:
        for pod in [pod for pod in by_id.values() if pod.title == nameless.id and pod.id != nameless.id]:
            names = {name for _, name in pod.containers}
            more = [container for container in nameless.containers if container[1] not in names]
            by_id[pod.id] = pod._replace(containers=[*pod.containers, *more])
            by_id.pop(nameless.id, None)
    return list(by_id.values())


def _fits(id: str, part: str, whole: bool) -> bool:
    return bool(part) and (id == part if whole else "/" not in id and id.startswith(part))


def _by_name(text: str, sandboxes: Sequence[NamedSandbox], whole: bool) -> Iterator[PodMatch]:
    """The sandboxes and containers of a pod's name, and the sandboxes of an id."""
    parts = text.split("/")
    for sandbox in sandboxes:
        names = [sandbox.pod, f"{sandbox.namespace}/{sandbox.pod}"] if sandbox.pod else []
        if text in names or (len(parts) == 1 and _fits(sandbox.id, text, whole)):
            yield PodMatch(sandbox)
        if "/".join(parts[:-1]) in names:
            yield from (PodMatch(sandbox, id) for id, name in sandbox.containers if name and name == parts[-1])


def _container_by_id(text: str, sandboxes: Sequence[NamedSandbox], whole: bool) -> Iterator[PodMatch]:
    for sandbox in sandboxes:
        yield from (PodMatch(sandbox, id) for id, _ in sandbox.containers
                    if id != sandbox.id and _fits(id, text, whole))
