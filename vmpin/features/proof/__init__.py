"""The proof: where the threads of VMs ran, from samples, and the books of these over time. It changes no placement.
docs/proof.md describes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vmpin.feature import Comparison, Document, Feature, WatcherPart, present

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from vmpin.config.settings import Config
    from vmpin.daemon.watcher import Watcher
    from vmpin.features.common.samples import RunListener
    from vmpin.features.proof.sampler import Sampler


def _watch(watcher: Watcher) -> WatcherPart:
    from vmpin.features.proof.sampling import Sampling

    async def listen(sampler: Sampler) -> RunListener | None:
        make = next(present(part.listen for part in watcher.parts.values()), None)
        return None if make is None else await make(sampler)

    async def run() -> None:
        """Sample after the runtime's list: what that loads takes long, and no container waits for it."""
        waits = watcher.nri is not None and watcher.view.config.paths.nri.exists()
        await sampling.run(watcher.timeouts.settling if waits else 0.0)

    sampling = Sampling(watcher.reconciler, watcher.lock.held, listen)
    return sampling.part(run)


def _options(verb: str, parser: ArgumentParser) -> None:
    if verb == "verify":
        from vmpin.features.proof.verbs.since_options import add_options

        add_options(parser)


def _verify(config: Config, args: Namespace, sandbox: str | None, namespace: str) -> Comparison | None:
    if args.since is None:
        return None
    from vmpin.features.proof.verbs.run_times import compared

    return compared(config, sandbox, args.since, namespace, args.tolerate or 0.0)


def _tables(sandbox: Document, wide: bool) -> Iterable[tuple[Sequence[str], Sequence[Sequence[object]]]]:
    if not wide or not sandbox.get("proof"):
        return []
    from vmpin.features.proof.verbs.run_times import COLUMNS, row

    roles = sandbox["proof"]["roles"]
    return [(COLUMNS, [[role, *row(account)] for role, account in roles.items()])] if roles else []


FEATURE = Feature(name="proof", sections={"proof": "proof_settings.ProofSettings"},
                  files=("proof", "proof-wal", "proof-journal"), watch=_watch, options=_options, verify=_verify,
                  tables=_tables, members=lambda view, vm: {"proof": None})  # without a watcher
