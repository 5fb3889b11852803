"""`python -m soak`: see the package. Exit code 0 when all was well, 1 when something was not, 2 when it could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from need import need_tool

from soak.checks import Checks
from soak.containers import ContainerWorld
from soak.story import Story
from soak.trouble import TroubledWorld

#: Set in a process that has its mounts to itself.
_ALONE = "VMPIN_SOAK_ALONE"
_WORLDS = ("nri", "containers", "cluster")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description="Let random things happen to a watcher.")
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long (600)")
    parser.add_argument("--longest", type=float, default=0.0,
                        help="for how long when otherwise too little would have happened (not longer)")
    parser.add_argument("--steps", type=int, help="so many steps instead of --seconds, each kind once first")
    parser.add_argument("--between", type=int, nargs=2, default=[8, 30], metavar=("LEAST", "MOST"),
                        help="steps between two rests (8 30)")
    parser.add_argument("--world", choices=_WORLDS, default="nri",
                        help="what reports containers: hook and NRI, or real containers' hooks and "
                        "Kata's files; cluster: as nri, with an API server and a reporter that come and go")
    parser.add_argument("--seed", type=int, default=None, help="of the story (a new one each time)")
    parser.add_argument("--log", type=Path, help="a line for each step, with the watcher's own log at the end")
    parser.add_argument("-o", dest="out", type=Path, help="where the counts are written, as JSON")
    args = parser.parse_args()
    if os.geteuid() != 0:
        print("soak: needs root", file=sys.stderr)
        return 2
    if _ALONE not in os.environ:
        os.environ[_ALONE] = "1"
        os.execv(need_tool("unshare"), ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "soak",
                                        *sys.argv[1:]])
    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    print(f"soak: {args.world}, seed {seed}, {args.steps or f'{args.seconds:.0f} s'}", flush=True)
    lines: list[str] = []
    began = time.monotonic()
    rng = random.Random(seed)
    failed, story = "", None
    try:
        with _world(args.world)(rng) as world:
            story = Story(world, rng, lambda line: lines.append(f"{time.monotonic() - began:8.3f} {line}"),
                          tuple(args.between))
            try:
                _play(story, args, began)
            except Exception:
                failed = traceback.format_exc()
                lines.append(failed)
            if args.log is not None:
                args.log.write_text("\n".join(lines) + f"\n\n{world.log()}")
    except Exception:  # what is left behind, or the lines of the log
        if story is None:
            raise
        failed = failed or traceback.format_exc()
    found = report(story, seed, time.monotonic() - began, failed)
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    show(found)
    if found["violations"] or failed:
        print(failed or "\n".join(story.checks.found), file=sys.stderr)
        print("\n".join(lines[-60:]), file=sys.stderr)
        return 1
    return 0


def _play(story: Story, args: argparse.Namespace, began: float) -> None:
    story.world.start()
    if args.steps is not None:
        story.play_steps(args.steps)
    else:
        story.play(began + args.seconds, began + max(args.seconds, args.longest))
    if not story.checks.found:
        story.end()


def _world(name: str) -> type[TroubledWorld]:
    if name == "cluster":  # which needs more of the machine than the others do
        sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("unit", "features/cluster")]
        from soak.cluster_world import ClusterWorld
        return ClusterWorld
    return ContainerWorld if name == "containers" else TroubledWorld


def report(story: Story, seed: int, seconds: float, failed: str) -> dict[str, object]:
    checks: Checks = story.checks
    return {
        "seed": seed, "seconds": round(seconds, 1), "rests": story.rests,
        "steps": sum(story.steps.values()), "faults": sum(story.faults.values()),
        "steps_by_kind": dict(story.steps), "faults_by_kind": dict(story.faults),
        "sandboxes": story.world.made["sandboxes"], "containers": story.world.made["containers"],
        "spooled": story.world.made["spooled"],
        "alone": [story.world.made[f"rests without {part}"] for part in ("an API server", "a reporter")],
        "watchers": story.world.starts,
        "pins": checks.total("vmpin_pins_total"), "repairs": checks.total("vmpin_drift_total"),
        "new_threads": checks.total("vmpin_new_thread_latency_seconds_count"), "syncs": story.world.runtime.syncs,
        "checks": sum(checks.done.values()), "checks_by_kind": dict(checks.done),
        "violations": len(checks.found), "found": checks.found, "failed": failed,
        "lacking": story.lacking(), "never": story.never()}


def show(found: dict[str, object]) -> None:
    for name in ("steps", "faults"):
        kinds = found[f"{name}_by_kind"]
        assert isinstance(kinds, dict)
        print(f"{name}: {found[name]}: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print(", ".join(f"{name} {found[name]}" for name in (
        "sandboxes", "containers", "spooled", "watchers", "syncs", "pins", "repairs", "new_threads")))
    print(f"rests {found['rests']}, checks {found['checks']}, violations {found['violations']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
