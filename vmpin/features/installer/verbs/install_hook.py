"""`vmpin install hook`: puts the OCI hook where podman, CRI-O or containerd find it."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from vmpin.bounded import load_json
from vmpin.cli.output import VERSION
from vmpin.cli.verbs import Verbs, output_flag, verb
from vmpin.domain.facts import CRIO_DEFAULT
from vmpin.errors import UsageError
from vmpin.features.common.option_values import directory, new_file
from vmpin.features.installer import oci_hook
from vmpin.features.installer.file_operations import Operation, WriteFile, execute
from vmpin.features.installer.oci_hook import DEFAULT_STAGES, HookOptions

DEFAULT_SCRIPT_DIR = Path("/usr/local/libexec/vmpin")

DESCRIPTION = """\
Put the OCI hook where the runtime finds it. The hook reports each container that is created, started or stopped to
the watcher; it never stops a container from starting unless --fail-closed is given.

Podman and CRI-O read a hooks directory: --hooks-dir gets a copy of the hook and one JSON file a stage.
containerd has no such directory: --base-spec takes an OCI spec and prints it with the hook added.
"""

EPILOG = """\
examples:
  vmpin install hook --hooks-dir /usr/share/containers/oci/hooks.d     # CRI-O's only default, and podman's
  vmpin install hook --hooks-dir /usr/share/containers/oci/hooks.d --remove
  ctr oci spec | vmpin install hook --base-spec - \\
    --out /etc/containerd/vmpin-base.json
"""


def add_parser(kinds: Verbs) -> None:
    parser = verb(kinds, "hook", "register the OCI hook with podman, CRI-O or containerd", run, about=DESCRIPTION,
                  epilog=EPILOG)
    where = parser.add_argument_group("where")
    where.add_argument("--hooks-dir", type=directory, metavar="DIR", help="the hooks directory; with --base-spec, "
                       f"where the hook itself is put ({DEFAULT_SCRIPT_DIR})")
    where.add_argument("--base-spec", metavar="FILE", help="an OCI spec (- is standard input) to print with the hook "
                       "added, for containerd")
    where.add_argument("--out", type=new_file, metavar="FILE", help="write that spec to FILE instead")
    group = parser.add_argument_group("the hook")
    group.add_argument("--stage", action="append", choices=oci_hook.STAGES, metavar="STAGE",
                       help=f"a stage to register for, repeatable ({', '.join(DEFAULT_STAGES)})")
    group.add_argument("--socket", type=Path, default=oci_hook.DEFAULT_SOCKET, metavar="PATH",
                       help="the watcher's socket (%(default)s)")
    group.add_argument("--spool", type=Path, default=oci_hook.DEFAULT_SPOOL, metavar="DIR",
                       help="the directory for messages while the watcher is away (%(default)s)")
    group.add_argument("--deadline", type=int, default=oci_hook.DEFAULT_DEADLINE_MS, metavar="MS",
                       help="how long a container may wait for the watcher, in milliseconds (%(default)s)")
    group.add_argument("--fail-closed", action="store_true", help="no container starts unless the watcher answers ok")
    parser.add_argument("--remove", action="store_true", help="take the hook out again; with --base-spec, out of the "
                        "spec only")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    output_flag(parser, ("table", "json"))


def run(args: argparse.Namespace) -> int:
    if args.remove and args.stage:
        raise UsageError("--remove takes out every stage: it goes without --stage",
                         "to register fewer stages, install the hook again with those that stay")
    if args.base_spec is not None:
        args.out = None if args.out == "-" else args.out  # standard output, as without --out
        return _base_spec(args)
    if args.hooks_dir is None:
        raise UsageError("install hook needs --hooks-dir or --base-spec",
                         "podman and CRI-O: --hooks-dir DIR, containerd: --base-spec FILE")
    if args.out is not None:
        raise UsageError("--out goes with --base-spec only", "the hooks directory is --hooks-dir")
    if args.remove:
        operations, advice = oci_hook.plan_remove(args.hooks_dir), _removed_advice(args.hooks_dir)
    else:
        operations = oci_hook.plan_install(args.hooks_dir, _options(args))
        advice = _directory_advice(args.hooks_dir)
    if not args.dry_run:
        execute(operations)
    _report(args, operations, advice)
    return 0


def _base_spec(args: argparse.Namespace) -> int:
    script_dir, spec = args.hooks_dir or DEFAULT_SCRIPT_DIR, _read_spec(args.base_spec)
    script = oci_hook.script_path(script_dir)
    operations: list[Operation] = []
    if args.remove:
        edited = oci_hook.without_hook(spec, script)
    else:
        edited = oci_hook.with_hook(spec, script, _options(args))
        operations.append(oci_hook.script_operation(script_dir))
    text = json.dumps(edited, indent=2) + "\n"
    if args.out is not None:
        operations.append(WriteFile(Path(args.out), text.encode()))
    if not args.dry_run:
        execute(operations)
    if args.out is None:
        print(text, end="")
    _report(args, operations, _containerd_advice(args.out))
    return 0


def _options(args: argparse.Namespace) -> HookOptions:
    stages = tuple(dict.fromkeys(args.stage or DEFAULT_STAGES))
    # The runtime's limit fails the container: always well beyond the hook's own deadline.
    timeout = max(oci_hook.DEFAULT_TIMEOUT_S, 2 * args.deadline // 1000)
    return HookOptions(stages, args.socket, args.spool, args.deadline, args.fail_closed, timeout)


def _read_spec(name: str) -> dict[str, Any]:
    try:
        spec = load_json(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
    except OSError as err:
        raise UsageError(f"cannot read the OCI spec {name}: {err.strerror}", "`ctr oci spec` prints one") from err
    except (ValueError, RecursionError) as err:
        raise UsageError(f"the OCI spec {name} is not JSON: {err}", "`ctr oci spec` prints one") from err
    if not isinstance(spec, dict):
        raise UsageError(f"the OCI spec {name} is not a JSON object", "`ctr oci spec` prints one")
    return spec


def _report(args: argparse.Namespace, operations: list[Operation], advice: str) -> None:
    """Print a path a line, then what to do next; on standard error when the spec has standard output."""
    out = sys.stderr if args.base_spec is not None and args.out is None else sys.stdout
    if args.output == "json":
        written = [str(operation.path) for operation in operations if isinstance(operation, WriteFile)]
        removed = [str(operation.path) for operation in operations if not isinstance(operation, WriteFile)]
        document = {"version": VERSION, "dry_run": args.dry_run, "written": written, "removed": removed}
        print(json.dumps(document, indent=2), file=out)
        return
    for operation in operations:
        if args.dry_run:
            print(f"would {operation.describe()}", file=out)
        else:
            expected = isinstance(operation, WriteFile) != args.remove
            print(operation.path if expected else operation.describe(), file=out)
    if not operations:
        gone = args.remove and args.base_spec is None and not args.hooks_dir.exists()
        print("nothing to do" + (f": {args.hooks_dir} is not there" if gone else ""), file=out)
    elif not args.dry_run:
        print(f"\n{advice}", file=out)


def _directory_advice(hooks_dir: Path) -> str:
    where = oci_hook.script_path(hooks_dir).parent
    return f"""\
next, add the directory to the runtime's configuration unless it reads it already:
  podman   podman --hooks-dir {where} run …, or hooks_dir = ["{where}"] under [engine] in containers.conf
  CRI-O    hooks_dir = ["{where}"] under [crio.runtime], then restart CRI-O. It reads
           {CRIO_DEFAULT} alone by default, and runs no hook for its pause containers
  containerd has no hooks directory: see vmpin install hook --base-spec
Then start a container: `vmpin doctor hooks` shows whether its hook was received."""


def _removed_advice(hooks_dir: Path) -> str:
    return f"""\
next, take {oci_hook.script_path(hooks_dir).parent} out of the runtime's hooks_dir if nothing else is in it.
Containers made before keep the hook in their own config.json until they are deleted."""


def _containerd_advice(out: str | None) -> str:
    where = "the file you save this spec as" if out is None else Path(out).absolute()
    return f"""\
next, name it in the section of the runtime handler, then restart containerd:
  base_runtime_spec = "{where}"
  2.x (version 3)  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.HANDLER]
  1.7 (version 2)  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.HANDLER]"""
