"""Whatever stands in the ledger's file, or in a grant's annotation, nothing but the declared errors comes of it."""

from __future__ import annotations

from pathlib import Path

from absurd_values import absurd_json, absurd_texts, spoil
from saved_states import BOOT

from vmpin.bounded import load_json
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.texts.annotation_values import AnnotationError
from vmpin.features.allocator.texts.grant_data import read_annotation
from vmpin.reconcile.state_file import sealed
from vmpin.reconcile.state_format import dumps


def test_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    body = {"version": 1, "boot_id": BOOT, "ledger": {
        "version": 1, "shared": "0-1", "grants": [
            {"container": "c1", "sandbox": "pod", "cpus": "2-3", "policy": "dedicated", "state": "running", "node": 0,
             "amount": [1000, 2000, 100], "wish": {"near": "nic"}}],
        "refused": [{"container": "c2", "sandbox": "pod", "reason": "none", "time_ns": 7, "kind": "request"}]}}

    def load(raw: bytes) -> object:
        path.write_bytes(raw)
        return LedgerFile(path, BOOT).load()

    def seal(text: str) -> bytes:
        try:
            return sealed(dumps(load_json(text)))
        except (ValueError, RecursionError):
            return text.encode("utf-8", "surrogatepass")

    spoil(load, map(seal, absurd_json(body)))
    spoil(load, absurd_texts())


def test_a_grants_annotation() -> None:
    document = {"v": 1, "policy": "dedicated", "since": 7, "cpus": "2-3", "own": True, "wish": {"near": "nic"}}
    spoil(lambda raw: read_annotation(raw.decode("utf-8", "surrogatepass")), absurd_json(document), AnnotationError)
