"""`vmpin verify`: is every thread where it should be, and was it? For scripts and alerts."""

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
from vmpin.cli.proof import duration, elsewhere, percent, print_proof, proof, total

_ABOUT = """\
Compare what the kernel has with what the rules give, thread by thread, now. Exit code 1 when a thread is elsewhere
(drift) or has less than it should; CPUs on which another's threads may run are listed too.

With --since 24h also where the threads ran in that time, as the watcher sampled it (proof.sample_seconds): exit code 1
when more than --tolerate percent of it was elsewhere. CERTAIN is what no sample could have missed; the rest is booked
to the CPU that a thread was last seen on. The time begins with the books that were kept last before it.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "verify", "check that every thread is where it should be (exit 1 on drift)", about=_ABOUT)
    parser.add_argument("sandbox", nargs="?", metavar="SANDBOX", help="only this one")
    parser.add_argument("--since", metavar="DURATION", help="also where they ran since then: 90s, 30m, 24h, 7d")
    parser.add_argument("--tolerate", metavar="PERCENT", default="0", help="of what they ran, that may have been "
                        "elsewhere (default: 0)")
    output_flag(parser, ("text", "json"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config, tolerated = load_config(args), percent(args.tolerate)
    found = status_document(config, args.sandbox)
    threads = [(sandbox["id"], thread) for sandbox in found["sandboxes"] for thread in sandbox["threads"]]
    drift = [(sandbox, thread) for sandbox, thread in threads if not thread["ok"]]
    collisions = found["node"]["collisions"]
    past, strayed = None, False
    if args.since is not None:
        chosen = None if args.sandbox is None else found["sandboxes"][0]["id"]
        past = proof(config, chosen, duration(args.since))
        strayed = elsewhere(past) > tolerated
    if args.output == "json":
        print_data({"ok": not drift and not strayed, "threads": len(threads), "sandboxes": len(found["sandboxes"]),
                    "drift": [{"sandbox": sandbox, **thread} for sandbox, thread in drift],
                    "collisions": collisions,
                    **({} if past is None else {"proof": past | {"total": total(past)}})}, "json")
        return 1 if drift or strayed else 0
    if drift:
        table(["SANDBOX", "THREAD", "ROLE", "NAME", "WANTED", "ACTUAL"],
              [[short(sandbox), thread["tid"], thread["role"], thread["name"], thread["wanted"],
                thread["actual"] or "none"] for sandbox, thread in drift], VERDICTS)
        print(f"{len(drift)} of {len(threads)} threads are not where they should be")
    else:
        print(f"all {len(threads)} threads of {len(found['sandboxes'])} VM sandboxes are where they should be")
    for collision in collisions:
        print(f"COLLISION on CPU {collision['cpu']}: {shown(collision['what'])}")
    if past is not None:
        print_proof(past)
    return 1 if drift or strayed else 0
