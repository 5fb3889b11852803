"""The scheduling class of vCPUs that are alone on an exclusive CPU, given with `scheduling.vcpu_class`.

vmpin sets no class of other threads. A class is set after the masks of a pass, by a watcher alone, and its thread's
former one is kept in a file until it is given back.
docs/scheduling.md describes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from vmpin.feature import Comparison, Document, Feature, WatcherPart

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from vmpin.config.settings import Config
    from vmpin.daemon.watcher import Watcher
    from vmpin.domain.model import SandboxId
    from vmpin.features.scheduling.class_setter import ClassSetter
    from vmpin.reconcile.view import NodeView

_FILE = "scheduling.json"


def _path(config: Config) -> Path:
    return config.paths.run / _FILE


def _is_on(config: Config) -> bool:
    settings = config.of_features["scheduling"]
    return settings.vcpu_class != "other" or bool(settings.privileged_namespaces)


def _has_records(config: Config) -> bool:
    path = _path(config)
    return path.exists() or path.with_name(f"{path.name}.bad").exists()


def _setter(config: Config, aside: bool = True) -> ClassSetter:
    from vmpin.features.scheduling.class_file import ClassFile
    from vmpin.features.scheduling.class_setter import ClassSetter
    from vmpin.host.procfs import Procfs

    proc = Procfs(config.paths.proc)
    return ClassSetter(proc, ClassFile(_path(config), proc.boot_id(), aside), config.contention_rules)


def _give_back(config: Config) -> bool:
    return not _has_records(config) or _setter(config).give_back()


def _giving_back(config: Config) -> list[str]:
    if not _has_records(config):
        return []
    try:
        decided = _setter(config, aside=False).planned({}, lambda *_: False)
    except OSError as err:
        return [f"the classes of vCPUs cannot be read: {err.strerror}"]
    return [change.describe() for change in decided.backs]


def _settle(view: NodeView, sandboxes: Collection[SandboxId]) -> bool:
    """Give back the classes of sandboxes that are unpinned, or placed anew: a watcher alone sets classes."""
    if not _has_records(view.config) and not view.unknown_originals:
        return True
    from vmpin.features.scheduling.class_setter import vcpus_of

    vms = {sandbox: vm for sandbox, vm in view.vms.items() if sandbox in sandboxes}
    return _setter(view.config).give_back(lambda sandbox: sandbox in sandboxes, vcpus_of(vms))


def _watch(watcher: Watcher) -> WatcherPart | None:
    config = watcher.view.config
    if not _is_on(config):
        return _leaving(watcher.view) if _has_records(config) else None
    from vmpin.features.scheduling.scheduling_watcher_part import NodeScheduling

    return NodeScheduling(watcher.view, config.of_features["scheduling"], _setter(config)).part()


def _leaving(view: NodeView) -> WatcherPart:
    """Give back what an earlier watcher set: at the start, and what was refused at each resync and at an unpin."""
    from vmpin.features.scheduling.class_setter import vcpus_of

    setter = _setter(view.config)

    def begin() -> None:
        setter.give_back(vcpus=vcpus_of(view.vms))

    def after_resync() -> None:
        setter.give_back()

    return WatcherPart(begin=begin, after_resync=after_resync,
                       settle=lambda sandboxes: setter.give_back(lambda sandbox: sandbox in sandboxes))


def _verify(config: Config, args: Namespace, sandbox: str | None, namespace: str) -> Comparison | None:
    is_on = _is_on(config)
    if not is_on and not _has_records(config):
        return None
    from vmpin.cli.control_client import status_document
    from vmpin.features.scheduling.scheduling_text import compared_lines, misplaced
    from vmpin.status.selection import Selection

    document = status_document(config)
    if document["watcher"] is not None:  # its own configuration counts, as for masks
        is_on = "scheduling" in document["features"]
    if not is_on and not _has_records(config):
        return None
    chosen = [entry for entry in Selection(namespace=namespace).of(document) if sandbox in (None, entry["id"])]
    if document["watcher"] is None or not is_on:
        members = _by_records(config, is_on)
        chosen = [{**entry, **members.get(entry["id"], {})} for entry in chosen]
    wrong = misplaced(chosen)
    return Comparison(good=not wrong, members={"classes": wrong},
                      lines=compared_lines(chosen, wrong)) if wrong or is_on else None


def _by_records(config: Config, is_on: bool) -> Mapping[SandboxId, Document]:
    """The members of sandboxes' entries by the records. :param is_on: whether classes are to be set.
    :raises UnseenError: these cannot be read."""
    from vmpin.errors import UnseenError
    from vmpin.features.scheduling.scheduling_watcher_part import NodeScheduling
    from vmpin.reconcile import one_pass

    view, _ = one_pass.inspect(config)
    settings = config.of_features["scheduling"]
    if not is_on:
        settings = settings._replace(vcpu_class="other", privileged_namespaces="")
    try:
        return NodeScheduling(view, settings, _setter(config, aside=False)).by_records()
    except OSError as err:
        raise UnseenError(f"the classes of vCPUs cannot be read: {err}", "run this as root") from err


def _lines(sandbox: Document) -> Iterable[str]:
    if not sandbox.get("scheduling"):
        return ()
    from vmpin.features.scheduling.scheduling_text import sentences

    return [f"scheduling: {text}" for text in sentences(sandbox)]


def _sentences(sandbox: Document) -> Iterable[str]:
    if not sandbox.get("scheduling"):
        return ()
    from vmpin.features.scheduling.scheduling_text import sentences

    return [f"{text[0].upper()}{text[1:]}." for text in sentences(sandbox)]


def _facts(config: Config, root: Path) -> Document:
    if not _is_on(config):
        return {}
    from vmpin.features.scheduling.scheduling_facts import scheduling_facts

    return scheduling_facts(config, root)


FEATURE = Feature(name="scheduling", sections={"scheduling": "scheduling_settings.SchedulingSettings"},
                  fixed=("scheduling",), files=(_FILE,), give_back=_give_back, giving_back=_giving_back,
                  settle=_settle, watch=_watch, verify=_verify, lines=_lines, sentences=_sentences, facts=_facts,
                  checks="scheduling_checks.CHECKS")
