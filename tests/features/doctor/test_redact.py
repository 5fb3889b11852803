"""What of a text may leave the node (redact)."""

from __future__ import annotations

import pytest
from effort import effort
from hypothesis import given
from hypothesis import strategies as st

from vmpin.features.doctor.redact import LEFT_OUT, cleaned, command_line, kernel_parameters


def test_kernel_parameters_keep_their_values_only_where_these_are_known_to_be_harmless() -> None:
    line = "BOOT_IMAGE=/v isolcpus=managed_irq,2-7 nohz-full=2-7 quiet ignition.config.url=http://x/?t=1 a -- b=c"
    assert kernel_parameters(line) == [
        f"BOOT_IMAGE={LEFT_OUT}", "isolcpus=managed_irq,2-7", "nohz_full=2-7", "quiet",
        f"ignition.config.url={LEFT_OUT}", "a", f"-- {LEFT_OUT}"]


@pytest.mark.parametrize(("text", "kept"), [
    ("id=sec0,password=hush,x=1", f"id=sec0,password={LEFT_OUT},x=1"),
    ("API_KEY=hush", f"API_KEY={LEFT_OUT}"), ("auth-token=hush next", f"auth-token={LEFT_OUT} next"),
    ("https://me:hush@host/x", f"https://{LEFT_OUT}@host/x"), ("ssh://me@host", f"ssh://{LEFT_OUT}@host"),
    ("socket,id=agent,path=/run/x", "socket,id=agent,path=/run/x"), ("sandbox=a vms=3", "sandbox=a vms=3"),
    ("initdata=aGk=", f"initdata={LEFT_OUT}"),
    ('{"token": "hush, hush", "x": 1}', f'{{"token": {LEFT_OUT}, "x": 1}}'),
    ("Authorization: Bearer hush.hush done", f"Authorization: {LEFT_OUT} done"),
    ("password: hush", f"password: {LEFT_OUT}"), ("--api-token hush -v", f"--api-token {LEFT_OUT} -v"),
    ("passwd='hu sh'", f"passwd={LEFT_OUT}"),
    ("GET /x?a=1&access_token=hush&b=2", f"GET /x?a=1&access_token={LEFT_OUT}&b=2"),
    ("https://me:hu@sh@host/x", f"https://{LEFT_OUT}@host/x"), ("said bearer aHVzaGh1c2g=", f"said bearer {LEFT_OUT}"),
    ("jwt eyJh.eyJz.hush", f"jwt {LEFT_OUT}"),
    ("file=rbd:pool/image:key=hush==", f"file=rbd:pool/image:key={LEFT_OUT}"),
    ("pod=ns/token-server passes=3 author=me keymap=de", "pod=ns/token-server passes=3 author=me keymap=de"),
    ("GET /x?sv=1&sig=hush&b=2", f"GET /x?sv=1&sig={LEFT_OUT}&b=2"),
    ("pw=hush pwd=hush", f"pw={LEFT_OUT} pwd={LEFT_OUT}"),
    ("userPw=hush, userpwd=hush pswd: hush", f"userPw={LEFT_OUT}, userpwd={LEFT_OUT} pswd: {LEFT_OUT}"),
    ("JSESSIONID=hush; csrftoken=hush; sigv4=hush", f"JSESSIONID={LEFT_OUT}; csrftoken={LEFT_OUT}; sigv4={LEFT_OUT}"),
    ("creds=hush urlSig=hush SAMLResponse=hush", f"creds={LEFT_OUT} urlSig={LEFT_OUT} SAMLResponse={LEFT_OUT}"),
    ("cwd=/x credits=1 Signal=9 insight=3", "cwd=/x credits=1 Signal=9 insight=3"),
    ("AccountKey=hush;x=1", f"AccountKey={LEFT_OUT};x=1"), ("psk: hush", f"psk: {LEFT_OUT}"),
    ("https://h/x?sig=hush&se=1 done", f"https://h/x?{LEFT_OUT} done"), ("'https://h/?a=1'", f"'https://h/?{LEFT_OUT}'"),
    ("https://h/x?X-Amz-Credential=hush&X-Amz-Signature=hush, then", f"https://h/x?{LEFT_OUT}, then"),
    ("https://h/x?code=hush http://h/y#access=hush", f"https://h/x?{LEFT_OUT} http://h/y#{LEFT_OUT}"),
    ("https://a@b/x?y", f"https://{LEFT_OUT}@b/x?{LEFT_OUT}"), ("is it https://h/x? no", "is it https://h/x? no"),
    ("significant=1 signal=9 pwm=2 exit code=1 x#y?z", "significant=1 signal=9 pwm=2 exit code=1 x#y?z"),
    ("the secret is out: nothing", "the secret is out: nothing")])
def test_what_is_named_like_a_secret_loses_its_value(text: str, kept: str) -> None:
    assert cleaned(text) == kept


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


@pytest.mark.parametrize(("option", "value", "kept"), [
    ("-object", "id=s,qom-type=secret,data=hush", f"secret,{LEFT_OUT}"),
    ("-object", '{"qom-type":"secret","id":"s","data":"hush"}', f"secret,{LEFT_OUT}"),
    ("-object", '{"qom-type":"iothread","id":"io1"}', '{"qom-type":"iothread","id":"io1"}'),
    ("-blockdev", '{"driver":"https","url":"https://a:hush@b/c","x":[{"cookie":"hush"}]}',
     f'{{"driver":"https","url":"https://{LEFT_OUT}@b/c","x":[{{"cookie":"{LEFT_OUT}"}}]}}'),
    ("-blockdev", "{hush", LEFT_OUT),
    ("-drive", "file=rbd:p/i:id=a:key=hush==:conf=/hush,if=none", f"file=rbd:p/i:id=a:key={LEFT_OUT},if=none"),
    ("-spice", "port=1,password=hush,,hush and hush,x=1", f"port=1,password={LEFT_OUT},x=1"),
    ("-drive", "file=https://h/i.img?t=hush,,hush&u=hush,if=none", f"file=https://h/i.img?{LEFT_OUT},if=none"),
    ("-blockdev", '{"driver":"https","url":"https://b/c?t=hush"}',
     f'{{"driver":"https","url":"https://b/c?{LEFT_OUT}"}}'),
    ("-set", "object.s.data=hush", LEFT_OUT), ("--platform", "oem_strings=[hush]", LEFT_OUT),
    ("-append", 'dyndbg="x hush" nosmt q="a b hush', f"dyndbg={LEFT_OUT} nosmt q={LEFT_OUT}")])
def test_in_whatever_form_an_option_has_it(option: str, value: str, kept: str) -> None:
    assert command_line(["qemu", option, value]) == ["qemu", option, kept]


@pytest.mark.parametrize("text", ["token" * 20000, "token=" * 20000, 'token="' * 20000, "eyJ" * 40000, "a= " * 40000,
                                  "://" * 40000, "://?" * 40000,
                                  "://a?b " * 20000, "x://" + "a" * 100000, "bearer " * 20000, "-" * 100000])
def test_no_text_takes_long(text: str) -> None:
    """Lines come from other programs: each is scanned a few times, not once for each of its characters."""
    assert effort(lambda: (cleaned(text), command_line(["qemu", "-x", text])), 1) < 400


@given(st.text(alphabet="abc=-. \t", max_size=40), st.integers(0, 3))
def test_whatever_the_line_no_unlisted_value_is_kept(noise: str, before: int) -> None:
    parts = noise.split()
    parts.insert(min(before, len(parts)), "secret.thing=hush")
    assert "hush" not in " ".join(kernel_parameters(" ".join(parts)))
