"""Command lines, as any process may write them."""

from __future__ import annotations

import pytest

from vmpin.vmm.arguments import (
    keyvals,
    long_options,
    option_values,
    run_directory_sandbox,
    sandbox_id,
    served_sandbox,
    socket_path,
    vsock_cid,
)


def test_options_take_one_dash_or_two() -> None:
    assert option_values(["x", "-a", "1", "--a", "2", "-b", "3", "-a"], "a") == ["1", "2"]


def test_keyvals_are_split_as_qemu_does() -> None:
    assert keyvals("a,,b,k=v,,w,flag,,x=1,x", "first") == [
        ("first", "a,b"), ("k", "v,w"), ("flag,x", "1"), ("x", "on")]
    assert keyvals("k=v=w", "first") == [("k", "v=w")]
    assert keyvals("", "first") == []
    assert keyvals("a,,,b", "first") == [("first", "a,"), ("b", "on")]


def test_a_long_option_has_its_value_behind_it_or_in_it() -> None:
    assert list(long_options(["x", "--a", "1", "--b=2", "--ab", "3", "--a=4", "-a", "5", "--a"], "--a", "--b")) == [
        ("--a", "1"), ("--b", "2"), ("--a", "4"), ("--a", "")]


@pytest.mark.parametrize(("argv", "path"), [
    (["x", "--api", "/run/a.sock"], "/run/a.sock"), (["x", "--api=path=/run/a.sock"], "/run/a.sock"),
    (["x", "--api", "a.sock", "--api", "b.sock"], "a.sock"), (["x", "--api", "fd=3"], None), (["x", "--api"], None),
    (["x", "--api", "/run/a\0b"], None), (["x", "--apis", "/run/a.sock"], None), ([], None)])
def test_the_path_of_a_socket(argv: list[str], path: str | None) -> None:
    assert socket_path(argv, "--api") == path


@pytest.mark.parametrize(("text", "cid"), [("3", 3), ("4294967294", 4294967294), ("2", None), ("4294967295", None),
                                           ("", None), ("-3", None), ("0x3", None), ("9" * 5000, None)])
def test_a_guests_cid_is_no_reserved_one(text: str, cid: int | None) -> None:
    assert vsock_cid(text) == cid


def test_a_sandbox_is_named_by_katas_directories() -> None:
    assert run_directory_sandbox(["x", "--s=path=/run/vc/vm/a1/x.sock,id=1"]) == "a1"
    assert run_directory_sandbox(["/run/kata/../x", "/run/user/7/run/kata/b2/x"]) == "b2"
    assert run_directory_sandbox(["/run/kata/a1", "/run/other/a1/x"]) is None
    assert served_sandbox(["/run/kata/b2/x", "/shared/sandboxes/a1,cache=auto"]) == "a1"
    assert sandbox_id("../a") is None
