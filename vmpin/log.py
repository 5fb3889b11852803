"""Logging: one line a decision, stable `key=value` words in it, to standard error (the journal takes it from there).

Levels. error: something is not as wanted and vmpin cannot make it so. warning: something odd that was worked around.
info: a decision and what became of it. debug: every system call that changes a mask, and what vanished meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import sys

_SYSLOG = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class _Journal(logging.Formatter):
    """With the level as the journal reads it (sd-daemon(3)), which knows the time itself."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage().replace("\n", "\\n")
        return f"<{_SYSLOG.get(record.levelno, 6)}>{text}"


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"time": round(record.created, 6), "level": record.levelname.lower(),
                           "module": record.name, "message": record.getMessage()})


def setup(level: str, as_json: bool = False) -> None:
    """Log to standard error; :param level: debug, info, warning or error."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(_Json())
    elif "JOURNAL_STREAM" in os.environ:
        handler.setFormatter(_Journal())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.root.handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    logging.root.setLevel(logging.WARNING)
    logging.getLogger("vmpin").setLevel(level.upper())
