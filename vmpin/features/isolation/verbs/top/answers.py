"""What the live view's keys ask for: explain, map, reconcile and help, as pages of text."""

from __future__ import annotations

from collections.abc import Callable

from vmpin.cli.reconcile import outcome_lines, reconciled
from vmpin.config.settings import Config
from vmpin.domain.model import SandboxId
from vmpin.domain.terminal import number_of, printable
from vmpin.feature import features, present
from vmpin.features.isolation.top.pod_usage import NodeUsage
from vmpin.features.isolation.verbs.top.live import AnswerPage
from vmpin.features.isolation.verbs.top.sheet import text_lines, title_of
from vmpin.features.isolation.verbs.top.view_state import Request

HELP = """\
arrows, j, k, PgUp, PgDn, Space, g, G   move
Enter   the threads of a pod            m   the map of the node
f or d  foreign threads on its CPUs     r   reconcile: set its masks; asks first
F       foreign threads on all CPUs     /   filter (Esc: none)
e       explain its threads' CPUs       s   next order; S B W D N choose one
p       pause the display               q   back; on the first page: quit

CPUS       5-6+0-1: CPUs 5 and 6 are exclusive to it, it shares 0 and 1
BUSY       run time of its threads, in % of one CPU: 200% are two CPUs
FOREIGN/s  time in each second that foreign threads ran on its exclusive CPUs;
           empty without any. A kernel thread that is bound to a CPU belongs
           to that CPU: a pod's page counts it as "kernel", not as foreign
WAITED/s   time in each second that its threads were ready to run, with no CPU
DRIFT      how many times the watcher put a thread back after another program
           had changed its mask
GUEST      the most urgent state of its containers in the guest
IN PLACE   (wide screens) threads that have the mask that the rules give them
PLACE      of a thread: ok, or the CPUs that the rules give it
!          the verdict is not pinned or floating: Enter or e gives the reasons
~          an estimate: the kernel counts a thread's run time and keeps its
           last CPU, so all time of a thread that may run on several CPUs
           counts for the last one. Without ~ it may run on that CPU alone
unseen     busy time of the CPU that no thread had: interrupts, and threads
           that began and ended between two samples. Busy time is counted in
           steps of 10 ms
"""


class Answers:
    """:param direct: without the watcher, as the option --direct has it."""

    def __init__(self, config: Config, direct: bool) -> None:
        self._config, self._direct = config, direct

    def __call__(self, request: Request, usage: NodeUsage, columns: int) -> Callable[[], AnswerPage]:
        made = {"explain": self._explain, "map": self._map, "reconcile": self._reconcile}.get(request.what)
        if made is None:
            return lambda: AnswerPage("vmpin top", text_lines(HELP))
        return lambda: made(usage, request.pod, columns)

    def _explain(self, usage: NodeUsage, pod: str, columns: int) -> AnswerPage:
        from vmpin.status.explain import sentences
        title = f"explain {title_of(usage, pod)}"
        document = usage.description.document
        entry = next((each for each in document["sandboxes"] if each["id"] == pod), None)
        if entry is not None:
            return AnswerPage(title, text_lines(sentences(document, entry)))
        owners = [owner for owner in usage.description.owners if owner.sandbox == pod]
        return AnswerPage(title, text_lines(["It has no VM: vmpin sets no mask in it.", *(
            f"CPUs {owner.cpus} are exclusive to {owner.label}." for owner in owners)]))

    def _map(self, usage: NodeUsage, pod: str, columns: int) -> AnswerPage:
        document = usage.description.document
        map_lines = next(present(feature.map_lines for feature in features()), None)
        if map_lines is None:
            return AnswerPage("map of the node", text_lines(["This installation of vmpin has no map."]))
        lines = map_lines(self._config, document, self._direct, columns)
        return AnswerPage(f"map of the node at {document['time']}", tuple(
            tuple((printable(text), style) for text, style in line) for line in lines))

    def _reconcile(self, usage: NodeUsage, pod: str, columns: int) -> AnswerPage:
        if all(each["id"] != pod for each in usage.description.document["sandboxes"]):
            return AnswerPage("reconcile", text_lines(["It has no VM: vmpin sets no mask in it."]))
        found = reconciled(self._config, SandboxId(pod))
        return AnswerPage(f"reconcile {title_of(usage, pod)}", text_lines(outcome_lines(found) or [
            f"{number_of(found['vms'], 'VM')}, nothing to change"]))
