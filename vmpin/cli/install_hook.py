"""`vmpin install-hook`: puts the OCI hook where podman, CRI-O or containerd find it.

What stays out: the files themselves (vmpin/install/hook_files.py), and any runtime's own configuration: it says what
to put there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from vmpin.cli.common import Verbs, directory, new_file, output_flag, verb
from vmpin.doctor.hook_checks import CRIO_DEFAULT
from vmpin.errors import UsageError
from vmpin.install import hook_files as hooks

DEFAULT_SCRIPT_DIR = Path("/usr/local/libexec/vmpin")

DESCRIPTION = """\
Put the OCI hook where the runtime finds it. The hook tells the watcher about each container that is created,
started or stopped; it never stops a container from starting unless --fail-closed is given.

Podman and CRI-O read a hooks directory: --hooks-dir gets a copy of the hook and one JSON file a stage.
containerd has no such directory: --base-spec takes an OCI spec and prints it with the hook added.
"""

EPILOG = """\
examples:
  vmpin install-hook --hooks-dir /usr/share/containers/oci/hooks.d     # CRI-O's only default, and podman's
  vmpin install-hook --hooks-dir /usr/share/containers/oci/hooks.d --remove
  ctr oci spec | vmpin install-hook --base-spec - --out /etc/containerd/vmpin-base.json
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "install-hook", "register the OCI hook with podman, CRI-O or containerd", about=DESCRIPTION,
                  epilog=EPILOG)
    where = parser.add_argument_group("where")
    where.add_argument("--hooks-dir", type=directory, metavar="DIR",
                       help="the hooks directory; with --base-spec, where the hook itself is put "
                            f"({DEFAULT_SCRIPT_DIR})")
    where.add_argument("--base-spec", metavar="FILE",
                       help="an OCI spec (- is standard input) to print with the hook added, for containerd")
    where.add_argument("--out", type=new_file, metavar="FILE", help="write that spec to FILE instead")
    _add_hook_options(parser)
    parser.add_argument("--remove", action="store_true",
                        help="take the hook out again; with --base-spec, out of the spec only")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    output_flag(parser, ("table", "json"))
    parser.set_defaults(run=run)


def _add_hook_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the hook")
    group.add_argument("--stage", action="append", choices=hooks.STAGES, metavar="STAGE",
                       help=f"a stage to register for, repeatable ({', '.join(hooks.DEFAULT_STAGES)})")
    group.add_argument("--socket", type=Path, default=hooks.DEFAULT_SOCKET, metavar="PATH",
                       help="where the watcher listens (%(default)s)")
    group.add_argument("--spool", type=Path, default=hooks.DEFAULT_SPOOL, metavar="DIR",
                       help="where messages wait while the watcher is away (%(default)s)")
    group.add_argument("--deadline", type=int, default=hooks.DEFAULT_DEADLINE_MS, metavar="MS",
                       help="how long a container may wait for the watcher, in milliseconds (%(default)s)")
    group.add_argument("--fail-closed", action="store_true",
                       help="no container starts unless the watcher has said ok")


def run(args: argparse.Namespace) -> int:
    if args.base_spec is not None:
        return _base_spec(args)
    if args.hooks_dir is None:
        raise UsageError("install-hook needs --hooks-dir or --base-spec",
                         "podman and CRI-O: --hooks-dir DIR, containerd: --base-spec FILE")
    if args.out is not None:
        raise UsageError("--out goes with --base-spec only", "the hooks directory is --hooks-dir")
    operations = (hooks.plan_remove(args.hooks_dir) if args.remove
                  else hooks.plan_install(args.hooks_dir, _options(args)))
    if not args.dry_run:
        hooks.execute(operations)
    advice = _removed_advice(args.hooks_dir) if args.remove else _directory_advice(args.hooks_dir)
    _report(args, operations, advice)
    return 0


def _base_spec(args: argparse.Namespace) -> int:
    script_dir = args.hooks_dir or DEFAULT_SCRIPT_DIR
    script = hooks.script_path(script_dir)
    spec = _read_spec(args.base_spec)
    operations: list[hooks.Operation] = []
    if args.remove:
        made = hooks.without_hook(spec, script)
    else:
        made = hooks.snippet_base_spec(spec, script, _options(args))
        operations.append(hooks.script_operation(script_dir))
    text = json.dumps(made, indent=2) + "\n"
    if args.out is not None:
        operations.append(hooks.WriteFile(Path(args.out), text.encode()))
    if not args.dry_run:
        hooks.execute(operations)
    if args.out is None:
        print(text, end="")
    _report(args, operations, _containerd_advice(args.out))
    return 0


def _options(args: argparse.Namespace) -> hooks.HookOptions:
    stages = tuple(dict.fromkeys(args.stage or hooks.DEFAULT_STAGES))
    # The runtime's limit fails the container: always well beyond the hook's own deadline.
    timeout = max(hooks.DEFAULT_TIMEOUT_S, 2 * args.deadline // 1000)
    return hooks.HookOptions(stages, args.socket, args.spool, args.deadline, args.fail_closed, timeout)


def _read_spec(name: str) -> dict[str, Any]:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        spec = json.loads(data)
    except OSError as err:
        raise UsageError(f"cannot read the OCI spec {name}: {err.strerror}", "`ctr oci spec` prints one") from err
    except (ValueError, RecursionError) as err:
        raise UsageError(f"the OCI spec {name} is no JSON: {err}", "`ctr oci spec` prints one") from err
    if not isinstance(spec, dict):
        raise UsageError(f"the OCI spec {name} is no JSON object", "`ctr oci spec` prints one")
    return spec


def _report(args: argparse.Namespace, operations: list[hooks.Operation], advice: str) -> None:
    """One path a line, then what to do next; on standard error when the spec has standard output."""
    out = sys.stderr if args.base_spec is not None and args.out is None else sys.stdout
    written = [str(each.path) for each in operations if isinstance(each, hooks.WriteFile)]
    removed = [str(each.path) for each in operations if isinstance(each, hooks.RemoveFile)]
    if args.output == "json":
        print(json.dumps({"dry_run": args.dry_run, "written": written, "removed": removed}, indent=2), file=out)
        return
    for each in operations:
        if args.dry_run:
            print(f"would {each.describe()}", file=out)
        else:
            print(each.path if isinstance(each, hooks.WriteFile) == (not args.remove) else each.describe(), file=out)
    if not operations:
        gone = args.remove and args.base_spec is None and not args.hooks_dir.exists()
        print("nothing to do" + (f": {args.hooks_dir} is not there" if gone else ""), file=out)
    elif not args.dry_run:
        print(f"\n{advice}", file=out)


def _directory_advice(hooks_dir: Path) -> str:
    where = hooks.script_path(hooks_dir).parent
    return f"""\
next, tell the runtime about the directory unless it reads it already:
  podman   podman --hooks-dir {where} run …, or hooks_dir = ["{where}"] under [engine] in containers.conf
  CRI-O    hooks_dir = ["{where}"] under [crio.runtime], then restart CRI-O. It reads
           {CRIO_DEFAULT} alone by default, ignores --hooks-dir on its command line,
           and runs no hook for its pause containers
  containerd has no hooks directory: see vmpin install-hook --base-spec
Then start a container: `vmpin doctor hooks` says whether its hook was received."""


def _removed_advice(hooks_dir: Path) -> str:
    return f"""\
next, take {hooks.script_path(hooks_dir).parent} out of the runtime's hooks_dir if nothing else is in it.
Containers made before keep the hook in their own config.json until they are deleted."""


def _containerd_advice(out: str | None) -> str:
    where = f"{Path(out).absolute()}" if out is not None else "the file you save this spec as"
    return f"""\
next, name it in the section of the runtime handler, then restart containerd:
  base_runtime_spec = "{where}"
  2.x (version 3)  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.HANDLER]
  1.7 (version 2)  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.HANDLER]"""
