"""The names of pods and containers that complete an argument, each of which means one thing. Pure."""

from collections import Counter
from collections.abc import Iterable

from vmpin.domain.terminal import short_id
from vmpin.status.pod_arguments import NamedSandbox


def completions(text: str, namespace: str, among: Iterable[NamedSandbox], containers: bool = False) -> list[str]:
    """Return the unambiguous arguments that begin with `text`: the shortest name of each sandbox, or its id where the
    name is missing or another's, too; all other ids if no name begins so. With `containers` also the containers of a
    pod whose name and slash were typed.

    :param namespace: of the pod; "" for any."""
    within = [sandbox for sandbox in among if not namespace or sandbox.namespace == namespace]
    uses = Counter(name for sandbox in within
                   for name in (*{sandbox.id, *_names_of(sandbox)}, *_containers_of(sandbox)))
    by_name: list[str] = []
    by_id: list[str] = []
    for sandbox in within:
        names = [name for name in _names_of(sandbox) if uses[name] == 1]
        fitting = [name for name in names if name.startswith(text)]
        by_name += fitting[:1]
        if not fitting and "/" not in sandbox.id and sandbox.id.startswith(text) and (text or not names):
            short = short_id(sandbox.id)
            unique = sum(candidate.id.startswith(short) for candidate in within) == 1 and not uses[short]
            (by_id if names else by_name).append(short if unique and short.startswith(text) else sandbox.id)
        if containers and "/" in text:
            by_name += [name for name in _containers_of(sandbox) if name.startswith(text) and uses[name] == 1]
    return sorted(by_name or by_id)


def _names_of(sandbox: NamedSandbox) -> list[str]:
    return [name for name in dict.fromkeys((sandbox.pod, sandbox.title)) if name]


def _containers_of(sandbox: NamedSandbox) -> list[str]:
    return [f"{pod}/{name}" for pod in _names_of(sandbox) for _, name in sandbox.containers if name and sandbox.pod]
