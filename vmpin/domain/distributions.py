"""Distributions of Kubernetes: where each has the kubelet's directory and configuration, the container runtime's
configuration and sockets, and Kata.

Pure. Sources: upstream: kubernetes cmd/kubelet/app/options, containerd defaults/defaults_unix.go, cri-o
pkg/config/config_unix.go, kata-containers tools/packaging/kata-deploy (helm-chart templates/_helpers.tpl and
binary/src/config.rs, also for the files and sockets of k3s, RKE2, k0s and MicroK8s); k3s pkg/cli/cmds and
pkg/daemons/agent/agent_linux.go; k0s' page runtime.md and kata-deploy's kubelet_root_dir; canonical/microk8s
microk8s-resources/default-args/kubelet; Talos pkg/machinery/constants and extensions
container-runtime/kata-containers; OpenShift machine-config-operator templates (kubelet.service) and microshift
pkg/node/kubelet.go; KubeEdge pkg/apis/componentconfig/edgecore/v1alpha2. None of them moves NRI's socket from the
default of containerd (internal/nri) and CRI-O."""

from __future__ import annotations

from collections.abc import Sequence

from vmpin.named_tuple import NamedTuple

_KUBELET = "/var/lib/kubelet"
_CONTAINERD, _CRIO = "/run/containerd/containerd.sock", "/run/crio/crio.sock"
_KATA = "/opt/kata"
_RANCHER = "config-v3.toml.tmpl beside it (config.toml.tmpl where its version is 2)"
NRI = "/var/run/nri/nri.sock"


class Distribution(NamedTuple):
    """Its places, all on the node. `program` is the program that the kubelet is a part of, "" where it runs by itself;
    `configurations` are the kubelet's files and `dropins` the directories of its drop-ins, where no command line names
    them; `engine` is containerd's configuration, or CRI-O's; `made_from` is to be changed in its place where the
    distribution writes that anew at each start; `kata` the prefix or directory that Kata is usually installed in."""

    name: str
    program: str = ""
    directory: str = _KUBELET
    configurations: tuple[str, ...] = ()
    dropins: tuple[str, ...] = ()
    engine: str = "/etc/containerd/config.toml"
    made_from: str = ""
    socket: str = _CONTAINERD
    kata: str = _KATA
    nri: str = NRI


DISTRIBUTIONS = (
    Distribution("kubeadm, EKS and others with upstream's places", configurations=(
        "/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet/config.json",
        "/etc/kubernetes/kubelet/kubelet-config.json"), dropins=("/etc/kubernetes/kubelet/config.json.d",)),
    Distribution("k3s", "k3s", dropins=("/var/lib/rancher/k3s/agent/etc/kubelet.conf.d",),
                 engine="/var/lib/rancher/k3s/agent/etc/containerd/config.toml", made_from=_RANCHER,
                 socket="/run/k3s/containerd/containerd.sock"),
    Distribution("RKE2", "rke2", dropins=("/var/lib/rancher/rke2/agent/etc/kubelet.conf.d",),
                 engine="/var/lib/rancher/rke2/agent/etc/containerd/config.toml", made_from=_RANCHER,
                 socket="/run/k3s/containerd/containerd.sock"),
    Distribution("k0s", directory="/var/lib/k0s/kubelet", engine="/etc/k0s/containerd.toml",
                 made_from="a file in /etc/k0s/containerd.d",
                 socket="/run/k0s/containerd.sock"),
    Distribution("MicroK8s", "kubelite", directory="/var/snap/microk8s/common/var/lib/kubelet",
                 engine="/var/snap/microk8s/current/args/containerd.toml",
                 made_from="containerd-template.toml beside it",
                 socket="/var/snap/microk8s/common/run/containerd.sock"),
    Distribution("Talos", configurations=("/etc/kubernetes/kubelet.yaml",), engine="/etc/cri/containerd.toml",
                 made_from="machine.files of Talos' configuration (/etc/cri/conf.d/20-customization.part)",
                 kata="/usr/local/share/kata-containers"),
    Distribution("OpenShift", configurations=("/etc/kubernetes/kubelet.conf",), dropins=(
        "/etc/openshift/kubelet.conf.d", "/etc/kubernetes/kubelet.conf.d"), engine="/etc/crio/crio.conf", socket=_CRIO,
                 kata="/usr/share/kata-containers/defaults"),
    Distribution("MicroShift", "microshift",
                 configurations=("/var/lib/microshift/resources/kubelet/config/config.yaml",),
                 engine="/etc/crio/crio.conf", socket=_CRIO, kata="/usr/share/kata-containers/defaults"),
    Distribution("KubeEdge", "edgecore", configurations=("/etc/kubeedge/config/edgecore.yaml",)))

#: The programs that are a kubelet, or have one in them.
KUBELETS = ("kubelet", *(distribution.program for distribution in DISTRIBUTIONS if distribution.program))


#: Programs that are a kubelet with these commands alone; `k3s etcd-snapshot` and `microshift healthcheck` are none.
RANCHER = ("k3s", "rke2")
ACTIONS = {**dict.fromkeys(RANCHER, frozenset(("server", "agent"))), "microshift": frozenset(("run",))}
_PRINTS = (["--version"], ["--help"], ["-h"], ["version"])


def is_kubelet(program: str, argv: Sequence[str]) -> bool:
    """Whether a process is a kubelet, or has one in it. One that prints its version, for a script, is none.
    :param program: the name of its program. :param argv: its command line, which k3s writes as one argument."""
    return (program in KUBELETS and list(argv[1:2]) not in _PRINTS
            and (program not in ACTIONS or not ACTIONS[program].isdisjoint(" ".join(argv).split())))


def with_program(program: str) -> Distribution | None:
    """The distribution that has a kubelet in this program; None for any other, also the kubelet itself."""
    return next((distribution for distribution in DISTRIBUTIONS if program and distribution.program == program), None)
