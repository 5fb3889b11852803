"""`vmpin verify`: is every thread where it should be? For scripts and alerts."""

from __future__ import annotations

import argparse

from vmpin.cli.common import (
    VERDICTS,
    Verbs,
    load_config,
    output_flag,
    print_data,
    short,
    shown,
    status_document,
    table,
    verb,
)

_ABOUT = """\
Compare what the kernel has with what the rules give, thread by thread, now. Exit code 1 when a thread is elsewhere
(drift) or has less than it should; CPUs on which another's threads may run are listed too.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "verify", "check that every thread is where it should be (exit 1 on drift)", about=_ABOUT)
    parser.add_argument("sandbox", nargs="?", metavar="SANDBOX", help="only this one")
    output_flag(parser, ("text", "json"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = status_document(load_config(args), args.sandbox)
    threads = [(sandbox["id"], thread) for sandbox in found["sandboxes"] for thread in sandbox["threads"]]
    drift = [(sandbox, thread) for sandbox, thread in threads if not thread["ok"]]
    collisions = found["node"]["collisions"]
    if args.output == "json":
        print_data({"ok": not drift, "threads": len(threads), "sandboxes": len(found["sandboxes"]),
                    "drift": [{"sandbox": sandbox, **thread} for sandbox, thread in drift],
                    "collisions": collisions}, "json")
        return 1 if drift else 0
    if drift:
        table(["SANDBOX", "THREAD", "ROLE", "NAME", "WANTED", "ACTUAL"],
              [[short(sandbox), thread["tid"], thread["role"], thread["name"], thread["wanted"],
                thread["actual"] or "none"] for sandbox, thread in drift], VERDICTS)
        print(f"{len(drift)} of {len(threads)} threads are not where they should be")
    else:
        print(f"all {len(threads)} threads of {len(found['sandboxes'])} VM sandboxes are where they should be")
    for collision in collisions:
        print(f"COLLISION on CPU {collision['cpu']}: {shown(collision['what'])}")
    return 1 if drift else 0
