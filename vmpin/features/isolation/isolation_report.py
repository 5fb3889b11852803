"""The isolation report of one owner of exclusive CPUs as data: shares, the worst minute with its cause and a remedy,
foreign programs, and what sampling could not see.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from vmpin.features.isolation.isolation_books import MINUTE, ForeignProgram, Owner, ProgramKind
from vmpin.features.isolation.isolation_shares import (
    FORMER,
    Account,
    Figures,
    Shares,
    Slo,
    WorstMinute,
    compare,
    shares,
)

VERSION = 1
#: Parts of the period that are shown one by one, and foreign programs.
MAX_BINS, MAX_SHOWN = 48, 20
_NS, _MS = 10**9, 10**6

#: A moment (CLOCK_BOOTTIME, ns) as RFC 3339.
Clock = Callable[[int], str]


def pod_report(figures: Figures, clock: Clock, drift: Mapping[str, object] | None = None,
               owning: bool = True) -> dict[str, object]:
    """One pod's part of the document. :param drift: its repairs since the watcher found it.
    :param owning: whether it has its exclusive CPUs still, or had them when it ended."""
    owner, span, account = figures.owner, figures.period, figures.account
    parts = shares(account, figures.unseen)
    return {
        "sandbox": owner.owner, "pod": {"namespace": owner.namespace, "name": owner.pod} if owner.pod else None,
        "kind": owner.kind, "cpus": str(owner.cpus) if owning else "", "ended": owner.ended is not None,
        "since": clock(span.begin), "until": clock(span.end), "seconds": round((span.end - span.begin) / _NS, 3),
        "without": _seconds(account.without), "cpu_seconds": _seconds(parts.total),
        "share": {"had": _share(parts, parts.had), "least": _share(parts, parts.least),
                  "most": _share(parts, parts.most)},
        "bounds": {"least": _seconds(parts.least), "most": _seconds(parts.most)},
        "parts": {name: {"seconds": _seconds(spent), "share": _share(parts, spent)}
                  for name, spent in (("had", parts.had), ("kernel", parts.kernel), ("others", parts.others),
                                      ("unidentified", parts.unidentified), ("hypervisor", parts.steal),
                                      ("unseen", parts.unseen))},
        "foreign_by_cpu": [{"cpu": None if cpu == FORMER else cpu, "seconds": _seconds(spent)}
                           for cpu, spent in figures.by_cpu.items()],
        "worst": None if figures.worst is None else _worst(figures.worst, owner, clock),
        "foreign_by_program": [_program(program, spent, owner)
                               for program, spent in islice(figures.by_program.items(), MAX_SHOWN)],
        "drift": None if drift is None else dict(drift),
        "limits": _limits(figures, parts),
        "bins": [_bin(begin, (end - begin) // _MS, sums, clock) for begin, end, sums in figures.bins if begin < end]}


def document(pods: Iterable[Mapping[str, Any]], since: str, until: str) -> dict[str, object]:
    return {"version": VERSION, "since": since, "until": until, "pods": list(pods)}


def with_slo(report: Mapping[str, Any], percent: float) -> dict[str, Any]:
    """The document with an objective (percent), and how each pod and all of them compare with it."""
    pods = [{**pod, "slo": slo_of(pod, percent).value} for pod in report["pods"]]
    verdicts = {pod["slo"] for pod in pods}
    together = next((verdict for verdict in (Slo.MISSED, Slo.UNDECIDED) if verdict in verdicts), Slo.KEPT)
    return {**report, "slo": {"percent": percent, "verdict": together.value}, "pods": pods}


def slo_of(pod: Mapping[str, Any], percent: float) -> Slo:
    """Compares whole milliseconds of CPU time, and no rounded shares."""
    total = sum(round(part["seconds"] * 1000) for part in pod["parts"].values())
    least, most = (round(pod["bounds"][name] * 1000) for name in ("least", "most"))
    return compare(least, most, total, percent / 100)


def _worst(worst: WorstMinute, owner: Owner, clock: Clock) -> dict[str, object]:
    account = worst.account
    parts = shares(account, 0)
    cause, spent = _cause(worst, parts, account)
    lost = parts.total - parts.had
    return {"minute": clock(worst.minute * MINUTE), "seconds": _seconds(lost), "share": _share(parts, lost),
            "least": _seconds(account.bounds[0]), "most": _seconds(account.bounds[1]), "cpu": worst.cpu,
            "cause": None if cause is None else _program(cause, spent, owner),
            "advice": "no scan found the program that caused it; if it happens again, run `vmpin verify --others "
                      "--seconds 60` meanwhile, which samples every thread" if cause is None else advice(
                          cause, str(owner.cpus))}


def _cause(worst: WorstMinute, parts: Shares, account: Account) -> tuple[ForeignProgram | None, int]:
    """Return what had most of a minute, and its time: a program that a scan found, interrupts, or the hypervisor."""
    choices = [(worst.spent, worst.program),
               (min(account.interrupts, account.bounds[1]), ForeignProgram(ProgramKind.INTERRUPTS, "interrupts", "")),
               (parts.steal, ForeignProgram(ProgramKind.HYPERVISOR, "the hypervisor", ""))]
    spent, program = max(choices, key=lambda choice: choice[0] if choice[1] is not None else -1)
    # Half of what is missing is still without a name: none of these is the cause.
    return (program, spent) if spent * 2 >= parts.unidentified and spent else (None, 0)


def _program(program: ForeignProgram, spent: int, owner: Owner) -> dict[str, object]:
    return {"kind": program.kind, "name": program.name, "where": program.where, "title": title(program),
            "seconds": _seconds(spent), "advice": advice(program, str(owner.cpus))}


def _limits(figures: Figures, parts: Shares) -> list[str]:
    """Describe what sampling could not see in this period, as sentences."""
    texts, account = [], figures.account
    if parts.unseen > account.slack:
        texts.append(f"{_text(figures.unwatched)} of the period had no samples (no watcher ran, it was stopped, or a "
                     "CPU was offline): this time counts neither for the pod nor for others")
    if account.without:
        texts.append(f"for {_text(account.without)} of the period the pod had no exclusive CPUs: there was nothing to "
                     "measure")
    floating = account.less + account.more - account.steal
    if floating > account.slack:
        texts.append(f"threads of the pod that may also run on other CPUs ran for {_text(floating)}: how much of that "
                     "was on its exclusive CPUs is unknown")
    if parts.unidentified > account.slack:
        texts.append(f"{_text(parts.unidentified)} of CPU time were foreign, and no scan found the program: it may "
                     "have been the kernel")
    if parts.steal:
        texts.append(f"the hypervisor took {_text(parts.steal)} of CPU time, which run times of threads may include")
    texts.append(f"readings are imprecise by {_text(max(account.slack, 1))} of CPU time in all")
    return texts


def _bin(begin: int, length: int, sums: Account, clock: Clock) -> dict[str, object]:
    """A part of the period, of so many milliseconds; of one that was hardly seen, no share is shown."""
    parts = shares(sums, 0)
    return {"start": clock(begin), "seconds": _seconds(length), "unseen": _seconds(max(0, length - sums.watched)),
            "without": _seconds(min(sums.without, length)),
            "share": _share(parts, parts.had) if sums.seen and sums.watched * 4 >= length else None}


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000


def _share(parts: Shares, spent: int) -> float:
    return round(parts.part(spent), 7)


def _text(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"


#: A kernel thread that takes work of any CPU: its CPUs are set in another place than those of other threads.
_WORKQUEUE = "kworker/u"


def title(program: ForeignProgram) -> str:
    """`backup in backup.service (host daemon)`"""
    kinds = {ProgramKind.VM: "thread of another VM", ProgramKind.CONTAINER: "another container",
             ProgramKind.HOST: "program of the node", ProgramKind.KERNEL: "kernel thread"}
    kind = kinds.get(program.kind)
    where = f" in {program.where}" if program.where else ""
    return f"{program.name}{where}" + (f" ({kind})" if kind else "")


def advice(program: ForeignProgram, cpus: str) -> str:
    """How to keep a program off a pod's CPUs. :param cpus: as a list."""
    match program.kind:
        case ProgramKind.VM:
            return ("run `vmpin verify`: it lists threads outside of their placement; vmpin keeps no VM off that it "
                    "does not manage (watch.only), or that is unpinned")
        case ProgramKind.CONTAINER:
            return (f"its cpuset must not include CPUs {cpus}: set the kubelet's cpuManagerPolicy to static; "
                    "`vmpin verify --others` shows its mask")
        case ProgramKind.HOST:
            unit = program.where.rpartition("/")[2]
            place = f"of {unit} (systemctl edit {unit})" if unit.endswith(".service") else \
                "of its unit, or in /etc/systemd/system.conf"
            return f"set CPUAffinity= {place} to CPUs that no pod owns, and the kubelet's reservedSystemCPUs to them"
        case ProgramKind.KERNEL if program.name.startswith(_WORKQUEUE):
            return f"write a mask without CPUs {cpus} to /sys/devices/virtual/workqueue/cpumask"
        case ProgramKind.KERNEL:
            return (f"a kernel thread that is bound to a CPU does that CPU's work; rcu_nocbs={cpus} on the kernel's "
                    "command line moves RCU's work, and the kubelet's reservedSystemCPUs keeps such a CPU from pods")
        case ProgramKind.INTERRUPTS:
            return (f"keep interrupts off CPUs {cpus}: irqaffinity= on the kernel's command line with the other CPUs, "
                    f"and IRQBALANCE_BANNED_CPULIST={cpus} for irqbalance")
        case ProgramKind.HYPERVISOR:
            return "this node is a virtual machine: pin its vCPUs on its host, or run fewer VMs there"
        case ProgramKind.OTHERS:
            return ("many short runs of several programs: `vmpin verify --others --seconds 60` shows what may run on "
                    f"CPUs {cpus}")
