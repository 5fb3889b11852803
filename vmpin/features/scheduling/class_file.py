"""The file of the classes that threads had before vmpin's: replaced before a class is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vmpin.bounded import MAX_INT64, MAX_PID, checked_whole
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.features.common.sealed_file import FileForm, SealedFile
from vmpin.features.scheduling.class_plan import ClassRecord
from vmpin.features.scheduling.sched_class import NAMES, SchedClass

VERSION = 1
_HIGHEST_PRIORITY = 99


def _data(records: Mapping[ThreadId, ClassRecord]) -> dict[str, object]:
    return {"threads": [[*thread, *record]
                        for thread, record in records.items()]}


def _parse(body: Mapping[str, Any]) -> dict[ThreadId, ClassRecord]:
    return {_thread(tid, starttime):
            ClassRecord(SandboxId(str(sandbox)), _thread(*main), _class(original), tuple(map(_class, written)))
            for tid, starttime, sandbox, main, original, written in body["threads"]}


def _thread(tid: Any, starttime: Any) -> ThreadId:
    return ThreadId(checked_whole(tid, MAX_PID, 1), checked_whole(starttime, MAX_INT64))


def _class(values: Any) -> SchedClass:
    policy, priority, reset = values
    return SchedClass(checked_whole(policy, max(NAMES)), checked_whole(priority, _HIGHEST_PRIORITY), reset is True)


class ClassFile(SealedFile[dict[ThreadId, ClassRecord]]):
    """A file of another boot has no thread of this one."""

    form = FileForm(VERSION, _parse, _data, dict[ThreadId, ClassRecord](), "vCPUs whose class was set keep it")
