"""The child process that enters network namespaces and prints their links.

Standard input has the request, standard output the answer, both JSON (`netns` is the other end). It is a process of
its own, so that no thread of vmpin's ever is in another namespace, and so that pyroute2 is loaded here alone. A
namespace is entered by a descriptor that is opened first; then the start time shows that the pid was the VMM's.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from vmpin.host.procfs import Procfs

_CLONE_NEWNET = 0x40000000
#: Links read of one namespace, and interfaces whose filters are.
MOST_LINKS, MOST_FILTERED = 8192, 256
#: include/uapi/linux/pkt_sched.h: the parent of filters on what is received, by qdisc.
_PARENTS = {"ingress": 0xFFFF0000, "clsact": 0xFFFFFFF2}
_EGRESS_REDIRECT = 1  #: include/uapi/linux/tc_act/tc_mirred.h
_DEEPEST = 12


def main() -> int:
    request = json.load(sys.stdin)
    signal.alarm(int(request["seconds"]))  # its default ends the process
    json.dump(answer(Procfs(request["proc"]), [tuple(process) for process in request["processes"]]), sys.stdout)
    return 0


def answer(proc: Procfs, processes: list[tuple[int, int]]) -> dict[str, Any]:
    """The links of the node's namespace, and of each process's by pid; `{"error": …}` in place of those that cannot be
    read, `{"same": true}` where the namespace is the node's own.
    :param processes: pid and start time of each."""
    try:
        node = _node_namespace(proc)
        links = _read(node, None)
    except Exception as err:  # links may have what pyroute2 cannot decode
        return {"node": {"error": _why(err)}, "processes": {}}
    number = os.stat(node).st_ino
    return {"node": links, "processes": {pid: _of_process(proc, pid, start, node, number) for pid, start in processes}}


def _node_namespace(proc: Procfs) -> int:
    """A descriptor of process 1's namespace; of this process's own where process 1 has rights that root has not, as in
    some machines and containers."""
    try:
        return os.open(f"{proc.root}/1/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return os.open(f"{proc.root}/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _of_process(proc: Procfs, pid: int, start: int, node: int, node_number: int) -> dict[str, Any]:
    try:
        namespace = os.open(f"{proc.root}/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as err:
        return {"error": _why(err)}
    try:
        stat = proc.thread_stat(pid, pid)
        if stat is None or stat.starttime != start:
            return {"error": "its process has ended"}
        return {"same": True} if os.fstat(namespace).st_ino == node_number else _read(namespace, node)
    except Exception as err:  # a pod makes its links: what is wrong with them must not hide the other pods'
        return {"error": _why(err)}
    finally:
        os.close(namespace)


def _why(err: Exception) -> str:
    if isinstance(err, PermissionError):
        return "needs CAP_SYS_ADMIN (run it as root)"
    if isinstance(err, OSError | ImportError):
        return str(getattr(err, "strerror", None) or err)
    return f"{type(err).__name__}: {str(err)[:200]}"


def _read(namespace: int, node: int | None) -> dict[str, Any]:
    """Enter a namespace, and read its links. :param node: a descriptor of the node's; None to read the node's own."""
    from pyroute2.iproute import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    with IPRoute() as netlink:
        try:
            links = [_link(message) for message, _ in zip(netlink.get_links(), range(MOST_LINKS), strict=False)]
            redirects = dict(_redirects(netlink))
            node_ns = None if node is None else (netlink.get_netnsid(fd=node) or {}).get("nsid")
        except NetlinkError as err:
            raise OSError(err.code, os.strerror(err.code)) from err
    return {"links": links, "redirects": redirects, "node_ns": node_ns}


def _link(message: Any) -> list[object]:
    """The fields of vm_network.NetLink."""
    info = message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info is not None else None
    bus, device = message.get_attr("IFLA_PARENT_DEV_BUS_NAME"), message.get_attr("IFLA_PARENT_DEV_NAME")
    return [message["index"], _text(message.get_attr("IFLA_IFNAME")), _text(kind), message.get_attr("IFLA_LINK") or 0,
            message.get_attr("IFLA_LINK_NETNSID"), message.get_attr("IFLA_MASTER") or 0,
            f"{_text(bus)}/{_text(device)}" if bus and device else ""]


def _text(value: object) -> str:
    """A name may have any bytes but `/`, `:` and white space: pyroute2 returns bytes where they are no UTF-8."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value or "")


def _redirects(netlink: Any) -> Iterator[tuple[int, list[int]]]:
    """Yield by ifindex the interfaces to which filters redirect what that interface receives."""
    filtered = {message["index"]: _PARENTS[kind] for message in netlink.get_qdiscs()
                if (kind := _text(message.get_attr("TCA_KIND"))) in _PARENTS}
    for index, parent in list(filtered.items())[:MOST_FILTERED]:
        targets = dict.fromkeys(target for message in netlink.get_filters(index=index, parent=parent)
                                for target in _targets(message, _DEEPEST))
        if targets:
            yield index, list(targets)


def _targets(value: Any, left: int) -> Iterator[int]:
    """The targets of redirecting actions anywhere in a filter: each classifier has them at another place."""
    if not isinstance(value, Mapping) or left == 0:
        return
    for attribute in value.get("attrs", ()):
        name, content = attribute[0], attribute[1]
        if name == "TCA_MIRRED_PARMS" and content["eaction"] == _EGRESS_REDIRECT:
            yield int(content["ifindex"])
        else:
            yield from _targets(content, left - 1)


if __name__ == "__main__":
    sys.exit(main())
