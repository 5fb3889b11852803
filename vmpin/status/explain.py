"""Sentences that explain why each thread has its CPUs, from the status document.

Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vmpin.cpuset import CpuSet, union
from vmpin.domain.assignments import writer_of
from vmpin.domain.drift import WRITER_COMMAND, Cause
from vmpin.feature import features, present


def container_sentences(document: Mapping[str, Any], sandbox: Mapping[str, Any], container: str) -> list[str]:
    """The sentences of one container of a sandbox: its CPUs, and the threads that back them.
    :param container: its id."""
    (entry,) = (entry for entry in sandbox["containers"] if entry["id"] == container)
    vcpus = CpuSet.parse(entry["vcpus"] or "")
    threads = [thread for thread in sandbox["threads"] if thread["vcpu"] is not None and thread["vcpu"] in vcpus]
    return [*_container(document, sandbox, entry), *_threads(document, {**sandbox, "threads": threads})]


def sentences(document: Mapping[str, Any], sandbox: Mapping[str, Any]) -> list[str]:
    """The sentences of one sandbox: VM, containers, mask, threads, problems, and those of features."""
    watched = document["watcher"] is not None
    return [*_sandbox(sandbox, watched), *_mask(document, sandbox), *_threads(document, sandbox),
            *_collisions(document, sandbox), *_drift(sandbox),
            *(text for added in present(feature.sentences for feature in features()) for text in added(sandbox))]


def _sandbox(sandbox: Mapping[str, Any], watched: bool) -> Iterable[str]:
    pod = f" of pod {sandbox['pod']['namespace']}/{sandbox['pod']['name']}" if sandbox["pod"] else ""
    if sandbox["vmm"] is None:
        yield f"Sandbox {sandbox['id']}{pod} has no running VM."
        return
    method = {"names": "by their names", "kvm_run": "by the KVM_RUN call they wait in", "debugfs": "by KVM's debugfs",
              "qmp": "by QEMU's answer over QMP"}.get(sandbox["found_by"], "")
    yield (f"Sandbox {sandbox['id']}{pod} is a {sandbox['vmm']['type']} VM, process {sandbox['vmm']['pid']}, found "
           + {"kata-go": "from the state of Kata's Go runtime.", "kata-rs": "from the state of Kata's runtime-rs.",
              "vmm": "from its command line.", "oci": "from an OCI hook.",
              "nri": "from the container runtime."}.get(sandbox["runtime"], "."))
    if method:
        yield f"Its vCPU threads were identified {method}."
    else:
        yield "Its vCPU threads could not be identified" + (" yet." if sandbox["verdict"] == "waiting" else ".")
    if watched:
        yield _guest(sandbox["guest"])
    yield f"Its verdict is {sandbox['verdict']}" + (
        ": " + "; ".join(sandbox["reasons"]) + "." if sandbox["reasons"] else ".")


def _guest(guest: Mapping[str, Any] | None) -> str:
    if guest is None:
        return "Nothing is sent to its guest (guest.via, guest.disabled_handlers)."
    agent = {"vmpin-agent": "vmpin's agent", "kata-agent": "Kata's agent"}.get(guest["by"])
    if agent is not None:
        return f"In its guest {agent} receives the vCPUs of each container ({guest['state']})."
    return f"No agent in its guest receives the vCPUs of each container: {guest['state'] or 'not tried yet'}."


_IN_GUEST = {"applied": "and its processes are kept on them", "pending": "which the agent has not confirmed yet",
             "sent": "which was requested, without a confirmation", "no agent": "but no agent there keeps it on them"}


def _in_guest(guest: Mapping[str, Any] | None) -> str:
    if guest is None:
        return ""
    outside = f", {len(guest['outside'])} or more threads outside" if guest["outside"] else ""
    return f", {_IN_GUEST.get(guest['state'], guest['state'])}" + (
        f" ({guest['error']})" if guest["error"] else "") + outside


def _mask(document: Mapping[str, Any], sandbox: Mapping[str, Any]) -> Iterable[str]:
    counted = [container for container in sandbox["containers"] if not container["pause"]]
    for container in counted:
        yield from _container(document, sandbox, container)
    if sandbox["mask"] is not None:
        yield f"The sandbox mask is {sandbox['mask']}: {_why_mask(document, sandbox, bool(counted))}."


def _why_mask(document: Mapping[str, Any], sandbox: Mapping[str, Any], counted: bool) -> str:
    node = document["node"]
    if sandbox["pod"] and not node["shared_pool"]:
        rest = union(CpuSet.parse(owner["cpus"]) for owner in node["owners"]
                     if owner["sandbox"] == sandbox["pod"]["uid"])
        if str(rest) == sandbox["mask"]:
            return (f"the CPUs that {writer_of(_complete(node))} gives its pod, as the shared pool is empty and no "
                    "container with CPUs is known")
    return "the CPUs of all its containers" if counted else "the shared pool, as no container is known"


def _complete(node: Mapping[str, Any]) -> str:
    """The authority that decides on every container, the last one that rules; "" without any."""
    return next(reversed(node["authorities"]), "")


def _container(document: Mapping[str, Any], sandbox: Mapping[str, Any], container: Mapping[str, Any]) -> Iterable[str]:
    pool, name = document["node"]["shared_pool"], _name(container)
    vcpus = "" if container["vcpus"] is None else (
        f"; in the guest it has {_vcpus(container['vcpus'])}{_in_guest(container['guest'])}")
    if container["stale_cpuset"]:
        by = container["exclusive_by"] or _complete(document["node"])
        now = (f"{_LISTED_BY.get(by, f'{by} lists')} {container['own_cpus']} for it"
               if container["exclusive"]
               else f"without other pods' exclusive CPUs it has {container['cpuset']}" if container["cpuset"] else
               f"other pods own all of these CPUs, so it belongs on the shared pool ({pool or 'none'})")
        yield (f"Container {name}'s cpuset is still {container['stale_cpuset']}, because {writer_of(by)} has not "
               f"rewritten it yet: {now}{vcpus}.")
    elif container["cpuset"] is None:
        where = "the shared pool" if document["node"]["pool_known"] else "the CPUs without an owner"
        yield f"Container {name} has no cpuset, so it runs on {where} ({pool or 'none'}){vcpus}."
    else:
        others = (f" to its pod, some of them shared with {_names(container['shared_with'], sandbox['containers'])}"
                  if container["shared_with"] else "")
        own = "" if container["own_cpus"] == container["cpuset"] else f"of which {container['own_cpus']} are "
        kind = "shared" if not container["exclusive"] else (
            f"{own}exclusive{others} ({_WHY_EXCLUSIVE.get(by := container['exclusive_by'], f'{by} assigns them')})")
        yield f"Container {name} has CPUs {container['cpuset']}, {kind}, {_reported_by(container)}{vcpus}."
    if container["disagreement"]:
        yield f"Its sources have disagreed for longer than a resync: {container['disagreement']}."


_WHY_EXCLUSIVE = {"kubelet": "the kubelet's checkpoint assigns them", "declared": "its annotation declares them so",
                  "ledger": "vmpin gave them to it", "pool": "none of them is in the shared pool",
                  "dra": "a DRA claim assigns them", "observed": "no container of another pod may use them"}
_LISTED_BY = {"kubelet": "the kubelet's checkpoint lists", "dra": "its DRA claim has"}
_REPORTED_BY = {"bundle": "as reported at its creation", "cgroup": "as read from its cgroup",
                "kata": "as read from Kata's state", "nri": "as the runtime reported over NRI",
                "kubelet": "as the kubelet's checkpoint lists them"}


def _reported_by(container: Mapping[str, Any]) -> str:
    since = f" (since {container['since']})" if container["since"] else ""
    agree = [source for source, report in container["cpusets_by_source"].items()
             if source != container["source"] and report["cpus"] == container["cpuset"]]
    more = f", confirmed by {' and '.join(agree)}" if agree else ""
    return _REPORTED_BY.get(container["source"], f"as reported by {container['source']}") + since + more


def _name(container: Mapping[str, Any]) -> str:
    return f"{container['name']} ({container['id']})" if container["name"] else str(container["id"])


def _names(ids: Iterable[str], containers: Iterable[Mapping[str, Any]]) -> str:
    names = {container["id"]: _name(container) for container in containers}
    return ", ".join(names.get(id, id) for id in ids)


def _vcpus(text: str) -> str:
    if not text:
        return "no vCPU"
    return f"vCPUs {text}" if "-" in text or "," in text else f"vCPU {text}"


def _threads(document: Mapping[str, Any], sandbox: Mapping[str, Any]) -> Iterable[str]:
    policy = document["policy"]
    for thread in sandbox["threads"]:
        role = thread["role"] if thread["vcpu"] is None else f"vCPU {thread['vcpu']}"
        subject = f"Thread {thread['tid']} ({thread['name']}) is {_ROLES.get(role, role)}"
        if thread["wanted"] is None:
            yield f"{subject} and is left alone; its mask is {thread['actual']}."
        else:
            yield f"{subject} and belongs on {thread['wanted']}: {_why(thread, sandbox, policy)}{_but(thread)}."


_APART = "sandbox's CPUs that are not exclusive; if there are none, on the sandbox mask"
_ROLES = {"iothread": "an iothread", "vhost": "a vhost worker", "kvm": "a helper of KVM",
          "emulator": "an emulator thread", "virtiofsd": "a thread of virtiofsd", "shim": "a thread of the shim"}


def _why(thread: Mapping[str, Any], sandbox: Mapping[str, Any], policy: Mapping[str, str]) -> str:
    if thread["role"] == "vhost" and policy["vhost"] == "near":
        nic = sandbox.get("near") or {"numa_node": None, "why": "its NIC was not looked for"}
        if nic["numa_node"] is None:
            return (f"the NUMA node of its NIC is not known ({nic['why']}), so policy vhost: near puts it on the "
                    f"{_APART}")
        return (f"policy vhost: near puts it on the sandbox's CPUs that are not exclusive and are on NUMA node "
                f"{nic['numa_node']}, that of its NIC ({nic['why']}); if there are none, on the {_APART}")
    if thread["role"] != "vcpu":
        key = {"iothread": "iothreads", "kvm": "emulator"}.get(thread["role"], thread["role"])
        cpus = {"apart": f"the {_APART}", "sandbox": "the sandbox mask",
                "shared": "the sandbox's shared CPUs; if there are none, on the shared pool",
                "housekeeping": "the housekeeping CPUs"}.get(policy[key], "the CPUs that it names")
        return f"policy {key}: {policy[key]} puts it on {cpus}"
    backed = [container for container in sandbox["containers"] if container["exclusive"] and container["vcpus"]
              and thread["vcpu"] in CpuSet.parse(container["vcpus"]) and thread["wanted"]]
    for container in backed:
        if CpuSet.parse(thread["wanted"]) <= CpuSet.parse(container["own_cpus"] or ""):
            others = " and others of its pod" if container["shared_with"] else ""
            cpus = "that CPU, which is" if len(CpuSet.parse(thread["wanted"])) == 1 else "those CPUs, which are"
            return f"it backs {cpus} exclusive to container {_name(container)}{others}"
    if policy["vcpus"] == "union":
        return "policy vcpus: union lets every vCPU use the sandbox mask"
    return "it backs no exclusive CPU, so it floats on these CPUs"


def _but(thread: Mapping[str, Any]) -> str:
    if thread["ok"]:
        return ""
    limit = f", as its cpuset cgroup has only {thread['cgroup']}" if thread.get("cgroup") else ""
    return f"; but its mask in the kernel is {thread['actual'] or 'empty'}{limit}"


def _collisions(document: Mapping[str, Any], sandbox: Mapping[str, Any]) -> Iterable[str]:
    for rival in document["node"].get("rivals", ()):
        if sandbox["id"] in rival["sandboxes"]:
            yield f"Two decide on CPUs {rival['cpus']}, {' and '.join(rival['authorities'])}: {rival['what']}."
    for collision in document["node"]["collisions"]:
        if sandbox["id"] in collision["sandboxes"]:
            yield f"Collision on CPU {collision['cpu']}: {collision['what']}."


def _drift(sandbox: Mapping[str, Any]) -> Iterable[str]:
    """How to find the program that set masks, if it is unknown."""
    if (sandbox.get("drift") or {}).get("repairs", {}).get(Cause.UNKNOWN):
        yield ("An unknown program has set other masks of its threads, which were put back. This prints each program "
               f"that sets masks, with its pid and the thread: {WRITER_COMMAND}")
