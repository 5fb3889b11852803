"""`vmpin verify --others`: checks that each owner of exclusive CPUs is alone there."""

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vmpin.cli.control_client import Document, stale_checkpoint, status_document
from vmpin.cli.output import print_data, print_text, table
from vmpin.cli.verbs import answering, usable_config
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.pod_names import names_of, with_names
from vmpin.domain.terminal import number_of, short_id
from vmpin.errors import UnseenError
from vmpin.feature import features, notes_on_cpus, present
from vmpin.features.common.cpu_owner import CpuOwner
from vmpin.features.isolation.others import (
    VERSION,
    Judgement,
    Kind,
    OtherProcess,
    Use,
    judge,
    lasting,
    owners_of,
    sandboxes_of,
)
from vmpin.features.isolation.process_pods import ProcessPods
from vmpin.features.isolation.thread_usage import ThreadUsageSampler

#: Rows of the tables; -o json has all.
_ROWS = 15
#: The output reports unseen time above this share: interrupts take less.
_DOUBT = 0.02


@answering(UnseenError)
def run(args: argparse.Namespace) -> int:
    """Sample for `args.seconds` (None: five), and print what may run, or ran, on exclusive CPUs of others.
    :returns: 1 if another pod may or did (with `args.strict`: any process), else 0."""
    config = usable_config(args)
    before = status_document(config, direct=args.direct, pods=True)
    sampler = ThreadUsageSampler()
    owners, sandboxes, changed = _owners(config, before, args.direct), sandboxes_of(before), CpuSet()
    if owners:
        seconds = 5.0 if args.seconds is None else args.seconds
        sampler.watch(seconds)
        if seconds:
            after = status_document(config, direct=args.direct, pods=True)
            owners, changed = lasting(owners, _owners(config, after, args.direct))
            sandboxes |= sandboxes_of(after)
    processes = list(sampler.processes())
    ignored = [*(Kind(kind) for kind in args.ignore), *([] if args.strict else [Kind.PAUSE])]
    judgement = judge(owners, sandboxes, processes, sampler.busy, ignored, ProcessPods.of(before.get("pods", ())))
    stale, rivals = stale_checkpoint(before), before["node"].get("rivals", ())
    limits = [*([] if stale is None else [f"STALE: {stale}."]),
              *(f"RIVALS {' and '.join(rival['authorities'])}: {rival['what']}." for rival in rivals),
              *_limits(sampler, changed)]
    if args.output == "json":
        print_data({"version": VERSION, **judgement.data(), "owners": [owner.data() for owner in owners],
                    "seconds": round(sampler.seconds, 3), "samples": sampler.samples,
                    "longest_gap": round(sampler.longest, 3),
                    "resolution": "ns" if sampler.host.precise else "ticks", "processes": len(processes),
                    "threads": sum(len(process.tasks) for process in processes), "changed": str(changed),
                    "limits": limits, "pid": os.getpid()}, "json")
    else:
        names = names_of(before)
        _print(judgement, sampler, [with_names(limit, names) for limit in limits], args.strict, notes_on_cpus(before))
    return 0 if judgement.alone or (judgement.apart and not args.strict) else 1


def _owners(config: Config, document: Document, direct: bool) -> tuple[CpuOwner, ...]:
    """The exclusive containers of a status document, and what else owns CPUs by a feature."""
    others = () if direct else present(feature.cpu_owners for feature in features())
    return (*owners_of(document), *(owner for cpu_owners in others for owner in cpu_owners(config)))


def _limits(sampler: ThreadUsageSampler, changed: CpuSet) -> Iterator[str]:
    """Yield the limits of the answer, as sentences."""
    if changed:
        yield f"CPUs {changed} changed owners meanwhile and are left out: try again."
    if sampler.samples and not sampler.sees_kernel:
        yield "No kernel thread is visible, so this is another PID namespace: threads outside it are missing."
    if sampler.samples < 2:
        return
    yield (f"{sampler.samples} samples, at most {sampler.longest * 1000:.0f} ms apart. The run time between two is "
           "booked to the CPU of the second; visits to other CPUs, and threads that started and ended in between, are "
           "in UNSEEN only.")
    if sampler.host.precise:
        yield ("Run times are the kernel's, in nanoseconds, and lag by up to a tick (1 to 10 ms) while a thread runs; "
               "BUSY is counted in steps of 10 ms.")
    else:
        yield ("This kernel has run times only in ticks of 10 ms (no CONFIG_SCHED_INFO, or delayacct is off): shorter "
               "runs may be missing.")


def _print(judgement: Judgement, sampler: ThreadUsageSampler, limits: Sequence[str], strict: bool,
           notes: Mapping[int, Sequence[str]]) -> None:
    print_text(_answer(judgement, sampler, strict))
    for use in judgement.uses:
        if use.cpu in judgement.contested:
            print_text(f"CPU {use.cpu} has {len(use.owners)} owners: {_names(use.owners)}")
    if judgement.exclusive:
        print()
        _print_uses(judgement.uses, measured=sampler.samples > 1)
        for note in [note for cpu in judgement.exclusive for note in notes.get(cpu, ())][:_ROWS]:
            print_text(note)
    if judgement.findings:
        print()
        _print_findings(judgement)
    if judgement.ignored:
        print(f"left out: {_processes(judgement.ignored)}")
    if limits:
        print()
    for limit in limits:
        print_text(limit)


def _answer(judgement: Judgement, sampler: ThreadUsageSampler, strict: bool) -> str:
    """The first line of the output."""
    if not judgement.exclusive:
        return "no CPU of this node is exclusive: nothing was sampled"
    where, within = f"exclusive {_cpus(judgement.exclusive)}", f"within {sampler.seconds:.1f} s"
    ran, findings = len(judgement.ran), len(judgement.findings)
    spent = _time(sum(finding.spent for finding in judgement.findings))
    if findings and judgement.apart and not strict:
        counts = Counter(finding.kind for finding in judgement.findings)
        did = f"; {_many(ran)} ran there, for {spent} in all" if ran else ""
        when = f"{within} no other pod ran on {where}, and none may" if sampler.samples > 1 else (
            f"no other pod may run on {where}")
        return f"PODS APART: {when}; of the node's own {_processes(counts)} may{did}"
    if ran:
        more = f"; {findings - ran} more may" if findings > ran else ""
        return f"NOT ALONE: {within}, {_many(ran)} ran on others' {where}, for {spent} in all{more}"
    if judgement.contested:
        return f"NOT ALONE: {_cpus(judgement.contested)} of {where} belong to more than one owner"
    seen = "" if sampler.sees_kernel else ", as far as this process can read"
    left_out = "" if not judgement.ignored else f", except what is left out ({_counted(judgement.ignored)})"
    if sampler.samples > 1:
        unseen = sum(use.unseen or 0 for use in judgement.uses)
        share = unseen / (sampler.seconds * 1e9 * len(judgement.uses))
        doubt = f" (but {_time(unseen)} is UNSEEN)" if share > _DOUBT else ""
        nothing = f"{within} nothing but the owners was seen to run on {where}{doubt}"
        return (f"ALONE SO FAR: {nothing}{left_out}{seen}, but {_many(findings)} may" if findings else
                f"ALONE: {nothing}, and nothing else may{left_out}{seen}")
    return (f"NOT KEPT APART: {_many(findings)} may run on others' {where} (did they? --seconds N)"
            if findings else f"ALONE BY MASK: nothing but the owners may run on {where}{left_out}{seen}")


def _print_uses(uses: Iterable[Use], measured: bool) -> None:
    """Print the exclusive CPUs by owner: a node may have hundreds of them."""
    groups: dict[tuple[CpuOwner, ...], list[Use]] = {}
    for use in uses:
        groups.setdefault(use.owners, []).append(use)
    rows = sorted(groups.values(), key=lambda group: (-sum(use.others for use in group), group[0].cpu))
    columns = ["CPUS", "OWNER"] + (["BUSY", "BY OWNER", "BY KERNEL", "BY OTHERS", "UNSEEN"] if measured else [])
    table(columns, [[CpuSet(use.cpu for use in group), _names(group[0].owners), *(_spent(group) if measured else [])]
                    for group in rows[:_ROWS]])
    if len(rows) > _ROWS:
        print_text(f"and {number_of(len(rows) - _ROWS, 'owner', 'more')}: -o json lists them")


def _spent(group: Sequence[Use]) -> list[str]:
    measured, busy = any(use.busy is not None for use in group), sum(use.busy or 0 for use in group)
    return [(_time(busy) if busy else "<0.010 s") if measured else "?", _time(sum(use.owner for use in group)),
            _time(sum(use.bound for use in group)), _time(sum(use.others for use in group)),
            _time(sum(use.unseen or 0 for use in group)) if measured else "?"]


def _print_findings(judgement: Judgement) -> None:
    owners = len({owner for use in judgement.uses for owner in use.owners})
    groups: dict[object, list[OtherProcess]] = {}
    for finding in judgement.findings:
        # A node has a hundred kworkers and as many shims: those that only may run there share a row.
        alike = (finding.kind, _name(finding), finding.may, _home(finding))
        groups.setdefault(finding.process.pid if finding.spent else alike, []).append(finding)
    rows = list(groups.values())
    table(["RAN", "ON", "MAY", "CLASS", "PROCESS", "PID", "THREADS", "OF", "NOT ITS OWN BUT OF"], [
        [_time(first.spent), CpuSet(first.ran) or "-", first.may or "-", first.kind, _name(first),
         f"{first.process.pid}" + (f" and {len(rest)} more" if rest else ""),
         sum(len(finding.threads) for finding in (first, *rest)), _home(first), _names(first.owners, owners)]
        for first, *rest in rows[:_ROWS]], keys=("PROCESS", "PID"))
    more = [finding for row in rows[_ROWS:] for finding in row]
    if more:
        counts = Counter(finding.kind for finding in more)
        ran, spent = sum(finding.spent > 0 for finding in more), _time(sum(finding.spent for finding in more))
        did = f"{ran} of them ran there, for {spent} in all; " if ran else ""
        print_text(f"and {_many(len(more), 'more')} may run there ({did}{_counted(counts)}): -o json lists them")


def _name(finding: OtherProcess) -> str:
    """The process's name. A kworker's name ends with its last work: kworker/u8:1-events_unbound."""
    name = finding.process.comm
    if finding.process.pid == os.getpid():
        return f"{name} (this command)"
    return f"{name.partition(':')[0]}:*" if finding.kind is Kind.KERNEL and name.startswith("kworker/u") else name


def _home(finding: OtherProcess) -> str:
    """The pod or unit of the process."""
    home = finding.label or finding.sandbox or finding.container or finding.process.cgroup.rpartition("/")[2]
    return short_id(home) or "-"


def _names(owners: Iterable[CpuOwner], of: int = 0) -> str:
    """The owners' names, at most two of them. :param of: the number of owners on the node; 0: not counted."""
    names = [owner.label for owner in owners]
    if len(names) > 2 and len(names) == of:
        return f"all {of} owners"
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _counted(counts: dict[Kind, int]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in Kind if counts.get(kind))


def _processes(counts: dict[Kind, int]) -> str:
    return f"{_counted(counts)} process{'' if sum(counts.values()) == 1 else 'es'}"


def _many(count: int, which: str = "") -> str:
    return number_of(count, "process", which)


def _cpus(cpus: CpuSet) -> str:
    return f"CPU{'s' if len(cpus) > 1 else ''} {cpus}"


def _time(spent: int) -> str:
    """Nanoseconds as seconds, never rounded to zero."""
    return "-" if spent == 0 else "<0.001 s" if spent < 1_000_000 else f"{spent / 1e9:.3f} s"
