"""The annotations in which a runtime writes a container's sandbox, pod and kind: containerd's keys, or CRI-O's.

A pod's author can set any annotation, so the family is chosen by something that only the runtime writes: the bundle's
path. It is …/ID/userdata for CRI-O and podman (storage's overlay-containers), and …/NAMESPACE/ID for containerd. A
runtime writes the keys of its own family after the author's annotations, so they are the runtime's (containerd:
internal/cri/annotations; CRI-O: server/container_create.go, with the kubelet's labels last). Keys of the other family
are the author's. Only in the config of CRI-O's pause container the author's annotations come last
(server/sandbox_run_linux.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vmpin.domain.model import Pod
from vmpin.named_tuple import NamedTuple

#: Kata's Go runtime sets this after the author's annotations (src/runtime/pkg/oci/utils.go: ContainerConfig).
KATA_BUNDLE = "io.katacontainers.pkg.oci.bundle_path"
_USERDATA = "/userdata"


class Dialect(NamedTuple):
    """The keys of one family; `runtime` is its name in log lines."""

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
    """The family of the runtime that created a bundle."""
    return CRIO if bundle.rstrip("/").endswith(_USERDATA) else CONTAINERD


def bundle_id(bundle: str) -> str:
    """The container's id in a bundle's path: the directory's name, or its parent's for CRI-O."""
    return bundle.rstrip("/").removesuffix(_USERDATA).rpartition("/")[2]


def other(dialect: Dialect) -> Dialect:
    """The other family."""
    return CONTAINERD if dialect is CRIO else CRIO


def foreign(annotations: Mapping[str, str], dialect: Dialect) -> Iterator[str]:
    """Yield the keys of the other family whose values contradict those of `dialect`."""
    for own_key, other_key in zip(dialect[1:], other(dialect)[1:], strict=True):
        if annotations.get(other_key) not in (None, annotations.get(own_key)):
            yield other_key


def pod_of(annotations: Mapping[str, str], dialect: Dialect) -> Pod | None:
    """The pod named by the annotations; None if they name none."""
    namespace, name, uid = (annotations.get(key, "") for key in (dialect.namespace, dialect.pod, dialect.uid))
    return Pod(plain(namespace, 253), plain(name, 253), plain(uid, 64)) if namespace and name else None


def name_of(annotations: Mapping[str, str], dialect: Dialect) -> str:
    """The container's name in its pod; "" if the annotations have none."""
    return plain(annotations.get(dialect.container, ""), 253)


def declared_exclusive(annotations: Mapping[str, str], key: str) -> bool | None:
    """Whether annotation `key` declares a container's CPUs exclusive. None if it is missing or invalid, or if no key
    is configured (""). It is set by the pod's author (docs/sources.md, "What can be claimed")."""
    return {"true": True, "false": False}.get(annotations.get(key, "")) if key else None


def plain(text: str, length: int) -> str:
    """The printable characters among the first `length` of `text`, fit for a log line and a terminal."""
    text = text[:length]
    return text if text.isprintable() else "".join(filter(str.isprintable, text))
