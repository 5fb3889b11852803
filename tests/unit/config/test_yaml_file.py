"""What is read without YAML is what YAML would read, and the rest is left to it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from vmpin.config import yaml_file
from vmpin.install import data_files

PLAIN = (
    "node:\n  shared_pool: \"0-3,8\"\n  housekeeping: \"\"\n",
    "# a comment\n\npaths:\n  run: /run/vmpin   # where it is\n  nri: /var/run/nri.sock\nwatch:\n  only: b001*\n",
    "watch:\n  resync_seconds: 10\n  nri: true\n  births: false\n",
    "watch:\n  nri: on\n  births: off\nallocate:\n  mode: on # or off\n  a: yes\n  b: no\n",
    "node:\n  shared_pool: 0-3\n  housekeeping: 0,17-100,3\n",
    "node:\n  # nothing\nwatch:\n",
    "a:\n  b: x-y_z.w/v\n  c: Yes-or-no\n  d: 0\n  e: 120\n  \n",
)
#: Of which YAML makes something else than meets the eye, or nothing.
LEFT_TO_YAML = (
    "", "\n# only a comment\n", "a: 1\n", "a:\n    b: 1\n", "a:\n  b:\n    c: 1\n", "a:\n  b: 1\na:\n  b: 2\n",
    "a:\n  b: 1\n  b: 2\n", "a:\n  b: y\n", "a:\n  b: Off\n", "a:\n  b: ~\n", "a:\n  b: null\n", "a:\n  b:\n",
    "a:\n  b: 1000-2\n", "a:\n  b: 1-\n", "a:\n  b: 017\n", "a:\n  b: 1_000\n", "a:\n  b: 1.5\n",
    "a:\n  b: 2024-01-01\n",
    "a:\n  b: 12:30\n", "a:\n  b: [1, 2]\n", "a:\n  b: {c: 1}\n", "a:\n  b: 'x'\n", 'a:\n  b: "\\n"\n',
    "a:\n  b: |\n    x\n", "a:\n  b: x y\n", "a:\n  b: x#y\n", "a:\n\tb: x\n", "a:\r\n  b: x\r\n", "a:\n  b: \u00e4\n",
    "---\na:\n  b: x\n", "a:\n  b: *x\n", "a:\n  b: &x y\n", "a:\n  b: !!str x\n", "  b: 1\n", "on:\n  b: 1\n",
    "a:\n  b: \"x\n", "a:\n  b: \"x\" # y\n", "a:\n  b: x:\n", "a:\n  b: 99999999999\n", "a:\n  b: x\n c: y\n",
)


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_plain_is_what_yaml_reads(text: str) -> None:
    found = yaml_file.parse_plain(text.encode())
    assert found is not None
    assert found == yaml.safe_load(text)
    assert repr(found) == repr(yaml.safe_load(text))  # true is not 1


@pytest.mark.parametrize("text", LEFT_TO_YAML)
def test_the_rest_is_left_to_yaml(text: str) -> None:
    assert yaml_file.parse_plain(text.encode()) is None


def test_whatever_is_read_at_all_is_read_as_yaml_does() -> None:
    """Documents put together at random, of pieces that mean something to YAML."""
    chance = random.Random(11)
    pieces = ("a", "b_c", "on", "node", ":", ": ", "  ", " ", "\n", "\n  ", "#", " # x", '"', "0", "7", "017", "1e3",
              "true", "No", "null", "/run", "-", "- ", "*", "x*", ",", "0-3", ".", "y", "\n\n", ":\n  b: ", "inf",
              ".inf", "[", "]", "{", "}", "'", "|", "&", "!", "%", "@", "<<", "=", "~", "0x1f", "1_0", "2024-01-01")
    read = 0
    for _ in range(20_000):
        text = "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 12)))
        if chance.random() < 0.7:
            text = f"sec:\n  key: {text}\n"
        found = yaml_file.parse_plain(text.encode())
        if found is not None:
            read += 1
            assert repr(found) == repr(yaml.safe_load(text)), text
    assert read > 500


def test_the_configuration_that_is_installed_is_plain(tmp_path: Path) -> None:
    raw = data_files.path("config/vmpin.yaml").read_bytes()
    assert yaml_file.parse_plain(raw) == yaml.safe_load(raw)
    copy = tmp_path / "vmpin.yaml"
    copy.write_bytes(raw)
    assert yaml_file.load(copy) == yaml.safe_load(raw)
