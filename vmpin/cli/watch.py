"""`vmpin watch`: the watcher."""

import argparse
import logging
import os
from pathlib import Path
from types import ModuleType

from vmpin.cli.verbs import Verbs, load_config, output_flag, verb

logger = logging.getLogger(__name__)

_ABOUT = """\
Keep every thread of every VM sandbox in place, until SIGTERM. The watcher connects to the container runtime as its NRI
plugin (if paths.nri exists, or with --nri), receives OCI hooks on RUN/hook.sock and other commands on RUN/vmpin.sock
(RUN: paths.run, /run/vmpin), follows the kubelet's checkpoint, and reads the whole node every watch.resync_seconds.

SIGHUP loads the configuration again, and with watch.reload: change any change of its file does; each difference is
logged. A file that set keys and now sets none is refused.

The watcher needs root, or CAP_SYS_NICE, CAP_SYS_PTRACE and the run directory; and CAP_NET_ADMIN for the kernel's
events of new VMs and threads (watch.births).

When it ends, the masks stay: `vmpin unpin --every` restores the original ones. With watch.on_exit: unpin the watcher
restores them itself, and removes its files. With -o json each log line is a JSON object.
"""

_EXAMPLES = """\
examples:
  vmpin watch --log-level debug     in this terminal, with the reason for each change
  vmpin install service --now       under systemd
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "watch", "keep every thread in place: the service", run, about=_ABOUT, epilog=_EXAMPLES)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="the same as "
                        "--set log.level=…")
    parser.add_argument("--nri", action=argparse.BooleanOptionalAction, default=None, help="be an NRI plugin, or do "
                        "not: the same as --set watch.nri=on or off")
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    import gc
    import signal

    from vmpin import log
    from vmpin.config.loading import DEFAULT_FILE, WatchedFile
    from vmpin.daemon import sd_notify
    from vmpin.domain.terminal import number_of
    from vmpin.host.lock import Lock
    from vmpin.reconcile.intake import take_spool
    from vmpin.reconcile.reconciler import Reconciler
    from vmpin.sources.spool import Spool
    if args.log_level:
        args.set_here.append(f"log.level={args.log_level}")
    if args.nri is not None:
        args.set_here.append(f"watch.nri={'on' if args.nri else 'off'}")
    file = WatchedFile(DEFAULT_FILE if args.config is None else Path(args.config))
    config = load_config(args)
    log.setup(config.log.level, as_json=args.output == "json")
    for warning in config.warnings:
        logger.warning("configuration: %s", warning)
    # A signal during the first pass ends the watcher in order after it (watch.on_exit).
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    is_new = not config.paths.run.exists()
    with Lock(config.paths.lock_file) as lock:
        if is_new:
            # whatever the umask; the modes of the sockets restrict their use
            os.chmod(config.paths.run, 0o755)
        reconciler, spool = Reconciler(config, used=lock.used), Spool(config.paths.spool)
        reconciler.node_state.begin_watching()
        spool.prepare()
        kept = take_spool(reconciler.node_state, spool, set())
        placed = reconciler.resync(full=True)
        sd_notify.notify(f"STATUS=placed the threads of {number_of(placed.vms, 'VM')}")
        # Only now, with every thread in its place: asyncio takes longer to load than that took.
        asyncio = asyncio_without_tls()
        from vmpin.daemon.task_table import tasks_of
        from vmpin.daemon.watcher import Watcher

        # Loaded modules and the objects of the first pass stay: scanning them for garbage is useless.
        gc.freeze()
        gc.enable()
        watcher = Watcher(lambda: load_config(args), reconciler, spool, kept, lock, changed=file.changed)
        asyncio.run(watcher.run(tasks_of))
    return 0


def asyncio_without_tls() -> ModuleType:
    """Import asyncio as where Python was built without OpenSSL: the watcher's loop has no use for TLS, and ssl takes
    5 ms of its start and 4 MB. Whatever else imports ssl later gets it."""
    import sys

    absent = "ssl" not in sys.modules
    if absent:
        vars(sys)["modules"]["ssl"] = None
    import asyncio
    if absent:
        del sys.modules["ssl"]
    return asyncio
