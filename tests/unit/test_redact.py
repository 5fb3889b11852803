"""What of a text may leave the node (redact)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.redact import LEFT_OUT, command_line, kernel_parameters, log_lines, words


def test_kernel_parameters_keep_their_values_only_where_these_are_known_to_be_harmless() -> None:
    line = "BOOT_IMAGE=/v isolcpus=managed_irq,2-7 nohz_full=2-7 quiet ignition.config.url=http://x/?t=1 a -- b=c"
    assert kernel_parameters(line) == [
        f"BOOT_IMAGE={LEFT_OUT}", "isolcpus=managed_irq,2-7", "nohz_full=2-7", "quiet",
        f"ignition.config.url={LEFT_OUT}", "a", f"-- {LEFT_OUT}"]


@pytest.mark.parametrize(("text", "kept"), [
    ("id=sec0,password=hush,x=1", f"id=sec0,password={LEFT_OUT},x=1"),
    ("API_KEY=hush", f"API_KEY={LEFT_OUT}"), ("auth-token=hush next", f"auth-token={LEFT_OUT} next"),
    ("https://me:hush@host/x", f"https://{LEFT_OUT}@host/x"), ("ssh://me@host", f"ssh://{LEFT_OUT}@host"),
    ("socket,id=agent,path=/run/x", "socket,id=agent,path=/run/x"), ("sandbox=a vms=3", "sandbox=a vms=3"),
    ("initdata=aGk=", f"initdata={LEFT_OUT}")])
def test_what_is_named_like_a_secret_loses_its_value(text: str, kept: str) -> None:
    assert words(text) == kept
    assert log_lines([text]) == [kept]


def test_a_vmms_command_line_keeps_what_says_how_the_vm_is_made() -> None:
    argv = ["/opt/kata/bin/qemu-system-x86_64", "-name", "sandbox-a,debug-threads=on", "-smp", "2,maxcpus=4",
            "-object", "secret,id=s,data=hush", "-object", "iothread,id=io1", "-fw_cfg", "name=opt/x,string=hush",
            "-append", "nosmt console=hvc0 agent.https_proxy=http://hush", "-smbios", "type=11,value=hush",
            "-device", "virtio-blk-pci,drive=d,password=hush"]
    kept = command_line(argv)
    assert "hush" not in " ".join(kept)
    assert kept[:5] == argv[:5]
    assert kept[6] == f"secret,{LEFT_OUT}"
    assert kept[8] == "iothread,id=io1"
    assert kept[12] == f"nosmt console={LEFT_OUT} agent.https_proxy={LEFT_OUT}"
    assert len(kept) == len(argv)


@pytest.mark.parametrize("arg", ["--cmdline=root=/dev/x key=hush", "--fw_cfg=name=x,string=hush",
                                 "--object=secret,id=s,data=hush", "--api-token=hush"])
def test_an_option_with_its_value_behind_an_equals_sign_is_no_way_past(arg: str) -> None:
    (_, kept) = command_line(["cloud-hypervisor", arg])
    assert "hush" not in kept
    assert kept.startswith(arg.partition("=")[0] + "=")


@given(st.text(alphabet="abc=-. \t", max_size=40), st.integers(0, 3))
def test_whatever_the_line_no_unlisted_value_is_kept(noise: str, before: int) -> None:
    parts = noise.split()
    parts.insert(min(before, len(parts)), "secret.thing=hush")
    assert "hush" not in " ".join(kernel_parameters(" ".join(parts)))
