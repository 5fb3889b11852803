"""`metrics`: its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.config import loading as settings
from vmpin.errors import ConfigError
from vmpin.features.metrics.metrics_settings import Address


@pytest.mark.parametrize(("text", "address"), [
    ("127.0.0.1:9750", Address("127.0.0.1", 9750)), ("0.0.0.0:1", Address("0.0.0.0", 1)),
    ("[::1]:9750", Address("::1", 9750)), ("", None), ("off", None),
    ("unix:/run/vmpin/metrics.sock", Address(path=Path("/run/vmpin/metrics.sock")))])
def test_where_metrics_are_served(text: str, address: Address | None) -> None:
    found = settings.load(None, {"VMPIN_METRICS_ADDRESS": text}, {})
    assert found.of_features["metrics"].address == address
    if address is not None:
        assert str(address) == text
        assert found.data()["metrics.address"]["value"] == text


@pytest.mark.parametrize(("key", "text", "why"), [
    ("metrics.address", "here", "ends in no port of TCP's"), ("metrics.address", '"9750"', "has no IP address"),
    ("metrics.address", "127.0.0.1", "ends in no port"), ("metrics.address", "127.0.0.1:0", "ends in no port"),
    ("metrics.address", "127.0.0.1:65536", "ends in no port"), ("metrics.address", '":9750"', "has no IP address"),
    ("metrics.address", "localhost:9750", "has no IP address"), ("metrics.address", '"::1:9750"', "has no IP address"),
    ("metrics.address", '"[127.0.0.1]:9750"', "has no IP address"), ("metrics.address", "true", "ends in no port"),
    ("metrics.address", "unix:metrics.sock", "is not an absolute path"),
    ("metrics.per_sandbox", "some", "neither true"),
    ("metrics.address", "unix:/" + "a" * 107, "is longer than the path of a socket")])
def test_a_value_that_cannot_be_used_is_refused(key: str, text: str, why: str, tmp_path: Path) -> None:
    section, _, name = key.partition(".")
    file = tmp_path / "vmpin.yaml"
    file.write_text(f"{section}: {{{name}: {text}}}\n")
    with pytest.raises(ConfigError) as caught:
        settings.load(file, {}, {})
    assert f"{key}" in str(caught.value)
    assert why in str(caught.value)
