"""Shared by the verbs: common flags, the configuration, requests to the watcher, and printing."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vmpin.config import loading as configuration
from vmpin.config.settings import Config
from vmpin.domain.terminal import printable
from vmpin.errors import ConfigError, UsageError, VmpinError, WatcherError

#: A running watcher answers in milliseconds; a stopped one never does.
DEADLINE = 10.0
MAX_ANSWER = 256 << 20

Document = dict[str, Any]
#: Verb parsers are added to this.
Verbs = Any


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal, as shutil finds it: argparse makes one for every option that it is given, and would
    load shutil and all its compressors for the first."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


@functools.cache
def _columns() -> int:
    """The width of the terminal, as shutil.get_terminal_size has it."""
    try:
        columns = int(os.environ.get("COLUMNS", 0))
    except ValueError:
        columns = 0
    if columns <= 0:
        try:
            columns = os.get_terminal_size(1).columns
        except OSError:
            columns = 0
    return columns or 80


def verb(verbs: Verbs, name: str, summary: str, *, epilog: str = "", about: str = "") -> argparse.ArgumentParser:
    """A verb's parser. The flags --config and --set may follow the verb as well."""
    made: argparse.ArgumentParser = verbs.add_parser(
        name, help=summary, description=about or f"{summary[0].upper()}{summary[1:]}.", epilog=epilog,
        formatter_class=HelpFormatter)
    made.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    made.add_argument("--set", metavar="KEY=VALUE", action="append", dest="set_here", default=[],
                      help=argparse.SUPPRESS)
    return made


def load_config(args: argparse.Namespace) -> Config:
    """The effective configuration. :raises ConfigError:"""
    flags = {}
    for text in [*args.set, *args.set_here]:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: is no KEY=VALUE", "e.g. --set node.shared_pool=0-1")
        flags[key] = value
    return configuration.load(None if args.config is None else Path(args.config), os.environ, flags)


def directory(text: str) -> Path:
    """An option's directory, absolute. With `..` in it links are resolved: abspath() would reduce `link/..` to the
    directory of the link. :raises UsageError:"""
    if not text:
        raise UsageError("an empty path names no directory", "is a variable unset?")
    return Path(os.path.realpath(text) if ".." in Path(text).parts else os.path.abspath(text))


def node_root(text: str) -> Path:
    """The mount of the node's file system. A missing or empty one would look like a node without any configuration.
    :raises UsageError:"""
    found = directory(text)
    try:
        if os.listdir(found):
            return found
        why = "is empty"
    except OSError as err:
        why = err.strerror or str(err)
    raise UsageError(f"--root {text}: {why}", "give the directory at which the node's file system is mounted")


def new_file(text: str) -> str:
    """An option's output file; Path() would drop the slash of a directory's name. :raises UsageError:"""
    if os.path.basename(text) in ("", ".", "..") or (text != "-" and os.path.isdir(text)):
        raise UsageError(f"{text!r} names no file to write", "it is empty, or a directory's name")
    return text


def direct_flag(parser: argparse.ArgumentParser) -> None:
    """The flag --direct, for verbs that work without the watcher."""
    parser.add_argument("--direct", action="store_true", help="read the node in this process instead of asking the "
                        "watcher, as if no watcher ran")


def ask_raw(config: Config, request: Document, has_direct: bool = False) -> bytes | None:
    """The watcher's answer as bytes, None if no watcher runs.

    :param has_direct: the verb has the flag --direct, which the error then suggests.
    :raises WatcherError:
    """
    import socket

    path = str(config.paths.control_socket)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(DEADLINE)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except PermissionError:
            raise WatcherError(f"{path}: permission denied",
                               "use root, or join the group of watch.status_group") from None
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            parts = []
            while part := connection.recv(1 << 20):
                parts.append(part)
        except TimeoutError:
            raise WatcherError(f"{path}: the watcher does not answer within {DEADLINE:.0f} s",
                               _instead(has_direct)) from None
        except OSError as err:
            raise WatcherError(f"{path}: the watcher hung up: {err.strerror}",
                               _instead(has_direct)) from err
    answer = b"".join(parts)
    if not answer:
        raise WatcherError(f"{path}: the watcher hung up without an answer", _instead(has_direct))
    if answer.startswith(b'{"error":'):
        refusal = json.loads(answer)
        raise UsageError(str(refusal["error"]), str(refusal.get("hint", "")))
    return answer


def _instead(has_direct: bool) -> str:
    """The hint for a watcher that does not answer."""
    log = "read its log: journalctl -u vmpin"
    return f"--direct reads the node without it; {log}" if has_direct else log


def ask(config: Config, request: Document, has_direct: bool = False) -> Document | None:
    """The watcher's answer, None if no watcher runs. :raises WatcherError:"""
    raw = ask_raw(config, request, has_direct)
    if raw is None:
        return None
    found: Document = json.loads(raw)
    return found


def status_document(config: Config, sandbox: str | None, wide: bool = False,
                    direct: bool | None = None, pods: bool = False) -> Document:
    """The status document, from the watcher, or read by this process if none runs.

    :param wide: with the VMMs' cgroups.
    :param direct: do not ask the watcher; None for a verb without the flag --direct.
    :param pods: with the names of all pods of the node.
    :raises UsageError: for an unknown sandbox.
    """
    found = None if direct else ask(config, {"op": "status", "wide": wide, "pods": pods},
                                    has_direct=direct is not None)
    found = found or read_status(config, wide, pods)
    if sandbox is not None:
        chosen = by_prefix(sandbox, [entry["id"] for entry in found["sandboxes"]])
        found["sandboxes"] = [entry for entry in found["sandboxes"] if entry["id"] == chosen]
    return found


def stale_checkpoint(found: Document) -> str | None:
    """A sentence if the kubelet's checkpoint is gone and its last contents are used, else None."""
    kubelet = found["sources"]["kubelet"]
    if kubelet is None or not kubelet.get("stale"):
        return None
    return (f"the kubelet's checkpoint is gone: its last contents are used, written "
            f"{kubelet['written'] or 'at an unknown time'}; {kubelet['second_witness']}")


def read_status(config: Config, wide: bool = False, pods: bool = False) -> Document:
    from vmpin.reconcile import one_pass
    from vmpin.status import collector

    quiet_log(config)
    return collector.document(one_pass.inspect(config)[0], None, wide=wide, pods=pods)


def by_prefix(text: str, ids: Iterable[str]) -> str:
    """The only id that equals `text` or begins with it. :raises UsageError:"""
    known = list(ids)
    if text in known:
        return text
    found = [each for each in known if text and each.startswith(text)]
    if not found:
        raise UsageError(f"no VM sandbox {text!r} is on this node", "`vmpin status` lists them")
    if len(found) > 1:
        raise UsageError(f"{text!r} is a prefix of the ids of {len(found)} sandboxes", "give more digits")
    return found[0]


def quiet_log(config: Config) -> None:
    """Log for short commands: warnings to standard error, and no routine messages unless log.level is set."""
    from vmpin import log

    log.setup("warning" if config.origin["log.level"] == "default" else config.log.level)


def output_flag(parser: argparse.ArgumentParser, choices: Sequence[str]) -> None:
    parser.add_argument("-o", "--output", choices=choices, default=choices[0], metavar="FORMAT",
                        help=f"{', '.join(choices)} (default: {choices[0]})")


def answering(action: Callable[[argparse.Namespace], int], args: argparse.Namespace,
              unanswered: type[VmpinError]) -> int:
    """Run a verb whose exit code 1 is an answer: errors that have this code elsewhere are raised as `unanswered`."""
    try:
        return action(args)
    except (ConfigError, UsageError, BrokenPipeError):
        raise
    except (VmpinError, OSError) as err:
        raise unanswered(str(err), getattr(err, "hint", "")) from err


def print_data(data: object, output: str) -> None:
    """As JSON (indented for a person) or YAML."""
    if output == "yaml":
        import yaml

        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(data, indent=2 if sys.stdout.isatty() else None))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], styles: dict[str, str] | None = None) -> None:
    """Print an aligned table: in colour at a terminal, plain in a pipe.

    :param styles: by cell text, a rich style.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(len(row[at]) for row in [list(columns), *cells]) for at in range(len(columns))]
        for row in [list(columns), *cells]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in cells:
        made.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    Console().print(made)


def print_styled(lines: Iterable[Sequence[tuple[str, str]]]) -> None:
    """Print lines of styled texts: in colour at a terminal, plain in a pipe."""
    if not sys.stdout.isatty():
        for line in lines:
            print("".join(text for text, _ in line).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=False)


VERDICTS = {"pinned": "green", "floating": "cyan", "degraded": "yellow", "waiting": "yellow", "unmanaged": "yellow",
            "off": "dim", "yes": "green", "no": "red"}
