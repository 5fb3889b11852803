"""The annotations in which a runtime writes a container's sandbox, pod and kind: containerd's keys, or CRI-O's.

A pod's author can write any annotation, so the family is chosen by what only the runtime writes: the bundle's path.
CRI-O's (and podman's) is …/ID/userdata (storage's overlay-containers), containerd's …/NAMESPACE/ID. Under each of them
the keys of its own family are written after the author's, so the runtime's stand (containerd:
internal/cri/annotations; CRI-O: server/container_create.go, and the kubelet's labels last), and keys of the other
family are the author's. Only in the config of CRI-O's pause container do the author's annotations come last
(server/sandbox_run_linux.go).
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vmpin.domain.model import Pod

#: Kata's Go runtime sets this one itself, after the author's (src/runtime/pkg/oci/utils.go: ContainerConfig).
KATA_BUNDLE = "io.katacontainers.pkg.oci.bundle_path"
_USERDATA = "/userdata"


class Dialect(NamedTuple):
    """The keys of one family; `runtime` names it in log lines."""

    runtime: str
    kind: str
    sandbox: str
    namespace: str
    pod: str
    uid: str
    container: str


CONTAINERD = Dialect("containerd", "io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id",
                     "io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name",
                     "io.kubernetes.cri.sandbox-uid", "io.kubernetes.cri.container-name")
CRIO = Dialect("CRI-O", "io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri-o.SandboxID",
               "io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.pod.uid",
               "io.kubernetes.container.name")


def dialect_of(bundle: str) -> Dialect:
    """The family that the runtime writes for a container with this bundle path."""
    return CRIO if bundle.rstrip("/").endswith(_USERDATA) else CONTAINERD


def bundle_id(bundle: str) -> str:
    """The container's id in the bundle's path: the directory's name, under CRI-O that of the directory above."""
    return bundle.rstrip("/").removesuffix(_USERDATA).rpartition("/")[2]


def other(dialect: Dialect) -> Dialect:
    """The family that the runtime does not write."""
    return CONTAINERD if dialect is CRIO else CRIO


def foreign(annotations: Mapping[str, str], dialect: Dialect) -> Iterator[str]:
    """The keys of the other family whose values differ from those of `dialect`."""
    for own, theirs in zip(dialect[1:], other(dialect)[1:], strict=True):
        if annotations.get(theirs) not in (None, annotations.get(own)):
            yield theirs


def pod_of(annotations: Mapping[str, str], dialect: Dialect) -> Pod | None:
    """The pod that the annotations name; None when they name none."""
    namespace, name, uid = (annotations.get(key, "") for key in (dialect.namespace, dialect.pod, dialect.uid))
    return Pod(plain(namespace, 253), plain(name, 253), plain(uid, 64)) if namespace and name else None


def name_of(annotations: Mapping[str, str], dialect: Dialect) -> str:
    """The container's name in its pod, "" where the runtime gives none."""
    return plain(annotations.get(dialect.container, ""), 253)


def declared_exclusive(annotations: Mapping[str, str], key: str) -> bool | None:
    """Whether a container's annotation `key` declares its CPUs exclusive; None when it does not, or no key is
    configured (""). The pod's author writes it (docs/sources.md, "What can be claimed")."""
    return {"true": True, "false": False}.get(annotations.get(key, "")) if key else None


def plain(text: str, length: int) -> str:
    """The printable characters among the first `length` of `text`, fit for a log line and a terminal."""
    return "".join(char for char in text[:length] if char.isprintable())
