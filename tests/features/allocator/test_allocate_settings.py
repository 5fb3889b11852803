"""The keys of the allocator."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.errors import ConfigError
from vmpin.features.allocator.grants.allocation_options import (
    AllocationMode,
    AllocationOptions,
    DefaultPolicy,
    GroupRule,
    HonouredKeys,
)
from vmpin.features.allocator.grants.cpu_request import Alignment, SmtUse


@pytest.fixture(autouse=True)
def no_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "DEFAULT_FILE", tmp_path / "none.yaml")


def test_the_allocators_options_are_those_of_the_file(tmp_path: Path) -> None:
    assert settings.load(None, {}, {}).of_features["allocate"].options == AllocationOptions()
    path = tmp_path / "vmpin.yaml"
    path.write_text("""
        allocate: {mode: on, reserved: "0-1", default: guaranteed, align: cache, smt: require, spread: nodes,
                   strict_reserved: true, pool_headroom: 2, privileged_namespaces: "kube-system,ops",
                   groups: "db=4-7@shop+ops;batch", honour: "crane,nri-plugins", export: cmk, grow_delay_seconds: 0}
    """)
    assert settings.load(path, {}, {}).of_features["allocate"].options == AllocationOptions(
        AllocationMode.ON, CpuSet.parse("0-1"), DefaultPolicy.GUARANTEED, Alignment.CACHE, SmtUse.REQUIRE, "nodes",
        True, 2, frozenset({"kube-system", "ops"}),
        {"db": GroupRule(CpuSet.parse("4-7"), frozenset({"shop", "ops"})), "batch": GroupRule()},
        frozenset({HonouredKeys.CRANE, HonouredKeys.NRI_PLUGINS}), "cmk", 0.0)


@pytest.mark.parametrize(("text", "align"), [("node", Alignment.NODE), ("cache", Alignment.CACHE),
                                             ("core", Alignment.CORE), ("socket", Alignment.SOCKET)])
def test_an_alignment_of_the_configuration_can_be_required(text: str, align: Alignment) -> None:
    for mark in ("", "!"):
        options = settings.load(None, {}, {"allocate.align": f"{text}{mark}"}).of_features["allocate"].options
        assert (options.align, options.align_required) == (align, mark == "!")


@pytest.mark.parametrize(("key", "value"), [
    ("mode", "maybe"), ("groups", "=4"), ("groups", "a;a"), ("groups", "a/b"), ("groups", "a=x"), ("groups", "Fast=1"),
    ("groups", "a=1-2;b=2-3"), ("groups", "a=1@"), ("honour", "crain"),
    ("pool_headroom", "-1"), ("grow_delay_seconds", "-1"), ("align", "rack"), ("align", "node!!"), ("align", "!"),
    ("reserved", "3-1")])
def test_a_wrong_option_of_the_allocators_is_named(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings.load(None, {}, {f"allocate.{key}": value})
    assert f"allocate.{key}: {value!r}" in str(caught.value)
