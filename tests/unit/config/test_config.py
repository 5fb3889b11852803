"""Where a value comes from, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vmpin.config import loading as settings
from vmpin.config.settings import SETTINGS
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.policy import Policy, SpareVcpuRule, ThreadPolicy, VcpuRule
from vmpin.errors import ConfigError


@pytest.fixture(autouse=True)
def no_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's own /etc/vmpin is not the tests'."""
    path = tmp_path / "etc.yaml"
    monkeypatch.setattr(settings, "DEFAULT_FILE", path)
    return path


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "vmpin.yaml"
    path.write_text(text)
    return path


def test_without_any_setting_the_defaults_hold() -> None:
    found = settings.load(None, {}, {})
    assert set(found.origin.values()) == {"default"}
    assert set(found.values) == {setting.key for setting in SETTINGS}
    assert found.rules == Policy()
    assert (found.node.shared_pool, found.node.housekeeping) == (None, EMPTY)
    assert (found.watch.resync_seconds, found.watch.qmp, found.log.level) == (10.0, True, "info")
    assert (found.watch.status_group, found.policy.exclusive_annotation) == ("", "")
    assert found.paths.kata_go == Path("/run/vc")
    assert found.paths.run == Path("/run/vmpin")
    assert {found.paths.hook_socket, found.paths.spool, found.paths.control_socket, found.paths.state_file,
            found.paths.lock_file} == {
        Path("/run/vmpin") / name for name in ("hook.sock", "spool", "vmpin.sock", "state.json", "lock")}


def test_the_file_beats_the_default_the_environment_the_file_and_a_flag_all(tmp_path: Path) -> None:
    path = write(tmp_path, """
        watch: {resync_seconds: 5, qmp: false}
        log: {level: debug}
        policy: {vcpus: union, vhost: shared}
    """)
    environment = {"VMPIN_LOG_LEVEL": "warning", "VMPIN_POLICY_VCPUS": "off", "PATH": "/bin"}
    found = settings.load(path, environment, {"policy.vcpus": "auto", "watch.qmp": "yes"})
    changed = {key: (value, found.origin[key]) for key, value in found.values.items()
               if found.origin[key] != "default"}
    assert changed == {
        "watch.resync_seconds": (5.0, str(path)),
        "policy.vhost": (ThreadPolicy.SHARED, str(path)),
        "log.level": ("warning", "environment VMPIN_LOG_LEVEL"),
        "policy.vcpus": (VcpuRule.AUTO, "flag"),
        "watch.qmp": (True, "flag"),
    }
    assert found.rules == Policy(vhost=ThreadPolicy.SHARED)


def test_the_default_file_is_read_where_there_is_one(no_default_file: Path) -> None:
    no_default_file.write_text("log: {level: error}")
    assert settings.load(None, {}, {}).log.level == "error"
    assert settings.load(None, {}, {}).origin["log.level"] == str(no_default_file)


def test_a_file_that_was_asked_for_takes_the_place_of_the_default_file(no_default_file: Path, tmp_path: Path) -> None:
    no_default_file.write_text("log: {level: error}")
    found = settings.load(write(tmp_path, "watch: {qmp: no}"), {}, {})
    assert (found.log.level, found.watch.qmp) == ("info", False)


def test_a_file_that_was_asked_for_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings.load(tmp_path / "none.yaml", {}, {})
    assert str(caught.value) == f"{tmp_path}/none.yaml: cannot be read: No such file or directory"


@pytest.mark.parametrize(("name", "why"), [("x" * 300, "File name too long"),
                                           ("loop", "Too many levels of symbolic links")])
def test_a_default_file_that_cannot_be_looked_at_is_an_error_not_a_default(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
    """As below an /etc/vmpin that is closed to this user; these fail for root, too."""
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setattr(settings, "DEFAULT_FILE", tmp_path / name)
    with pytest.raises(ConfigError, match=f"cannot be read: {why}"):
        settings.load(None, {}, {})


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "watch:\nlog:\n", "node: {shared_pool: , housekeeping: }"])
def test_a_file_may_say_nothing(tmp_path: Path, text: str) -> None:
    assert settings.load(write(tmp_path, text), {}, {}).values == settings.load(None, {}, {}).values


def test_every_rule_of_the_policy_can_be_said(tmp_path: Path) -> None:
    path = write(tmp_path, """
        node: {shared_pool: "0-1,8", housekeeping: 0}
        policy: {vcpus: off, spare_vcpus: shared, iothreads: "2-3", vhost: 4, emulator: housekeeping, virtiofsd: off,
                 shim: shared, exclusive_annotation: example.com/exclusive}
    """)
    found = settings.load(path, {"VMPIN_POLICY_SHIM": "5-6"}, {"policy.spare_vcpus": "housekeeping"})
    assert found.rules == Policy(VcpuRule.OFF, SpareVcpuRule.HOUSEKEEPING, CpuSet.parse("2-3"), CpuSet.parse("4"),
                                  ThreadPolicy.HOUSEKEEPING, ThreadPolicy.OFF, CpuSet.parse("5-6"))
    assert (found.node.shared_pool, found.node.housekeeping) == (CpuSet.parse("0-1,8"), CpuSet.parse("0"))
    assert found.policy.exclusive_annotation == "example.com/exclusive"
    data = found.data()
    assert data["policy.iothreads"] == {"value": "2-3", "from": str(path)}
    assert data["policy.vcpus"] == {"value": "off", "from": str(path)}
    assert data["node.shared_pool"] == {"value": "0-1,8", "from": str(path)}
    assert data["watch.resync_seconds"] == {"value": 10.0, "from": "default"}
    assert data["paths.run"] == {"value": "/run/vmpin", "from": "default"}


@pytest.mark.parametrize(("text", "said", "hint"), [
    ("wacth: {qmp: no}", "unknown section 'wacth'", "did you mean 'watch'?"),
    ("watch: {qpm: no}", "unknown key 'watch.qpm'", "did you mean 'watch.qmp'?"),
    ("policy: {vcpu: auto}", "unknown key 'policy.vcpu'", "did you mean 'policy.vcpus'?"),
    ("watch.qmp: no", "unknown section 'watch.qmp'", "did you mean 'watch.qmp'?"),
    ("frobnicate: {a: 0}", "unknown section 'frobnicate'", "`vmpin config` lists every key"),
    ("frobnicate: {a: {}, b: no}", "unknown section 'frobnicate'", ""),
    ('frobnicate: ""', "unknown section 'frobnicate'", ""),
    ("1: {a: 0}", "unknown section 1", ""),
    ("watch: {1: no}", "unknown key 'watch.1'", ""),
    ("watch: no", "watch: False is not a mapping of keys to values", ""),
    ("watch: [qmp]", "watch: ['qmp'] is not a mapping of keys to values", ""),
    ("[watch]", "is not a mapping of sections", ""),
    ("watch", "is not a mapping of sections", ""),
])
def test_what_is_no_key_is_refused_by_name_and_file(tmp_path: Path, text: str, said: str, hint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        settings.load(path, {}, {})
    assert str(caught.value) == f"{path}: {said}"
    assert hint in caught.value.hint


@pytest.mark.parametrize(("text", "ignored", "hint"), [
    ("frobnicate: {}", "section 'frobnicate'", "`vmpin config` lists every key"),
    ("frobnicate:\n  # level: 3\n", "section 'frobnicate'", ""),
    ("frobnicate: []", "section 'frobnicate'", ""),
    ("frobnicate: {a: {b: }}", "section 'frobnicate'", ""),
    ("wacth:", "section 'wacth'", "did you mean 'watch'?"),
    ("1: {}", "section 1", ""),
    ("policy:\n  gpus:", "key 'policy.gpus'", ""),
    ("policy: {gpus: {}}", "key 'policy.gpus'", ""),
])
def test_what_is_no_key_and_empty_is_ignored_with_a_warning(tmp_path: Path, text: str, ignored: str,
                                                            hint: str) -> None:
    path = write(tmp_path, f"watch: {{qmp: off}}\n{text}\n")
    for loaded in settings.load(path, {}, {}), settings.load_usable(path, {}, {}):
        (warning,) = loaded.warnings
        assert str(warning) == f"{path}: unknown {ignored} is empty: ignored"
        assert hint in warning.hint
        assert loaded.errors == ()
        assert not loaded.watch.qmp


@pytest.mark.parametrize(("key", "value", "why"), [
    ("paths.run", "run/vmpin", "is not an absolute path"), ("paths.run", "", "is not an absolute path"),
    ("paths.run", "5", "is not an absolute path"), ("paths.run", '"/run\\0"', "is not an absolute path"),
    ("node.shared_pool", "3-1", "invalid CPU list '3-1'"), ("node.shared_pool", "true", "is not a CPU list"),
    ("node.housekeeping", "all", "invalid CPU list 'all'"), ("node.housekeeping", "-1", "invalid CPU list '-1'"),
    ("node.housekeeping", "[0, 1]", "is not a CPU list"), ("node.housekeeping", "1.5", "is not a CPU list"),
    ("policy.vcpus", "shared", "is none of auto, union, off"), ("policy.vcpus", "", "is none of auto, union, off"),
    ("policy.spare_vcpus", "off", "is none of sandbox, shared, housekeeping"),
    ("policy.vhost", "somewhere", "or a CPU list"), ("policy.vhost", "true", "is none of apart, sandbox,"),
    ("policy.vhost", "1-x", "or a CPU list"),
    ("policy.exclusive_annotation", "two words", "has to be text without blanks"),
    ("watch.resync_seconds", "soon", "is not a number of seconds"),
    ("watch.resync_seconds", "true", "is not a number of seconds"),
    ("watch.resync_seconds", "", "is not a number of seconds"),
    ("watch.resync_seconds", "0", "is not between 0.1 and 86400 seconds"),
    ("watch.resync_seconds", "-3", "is not between"), ("watch.resync_seconds", "1e9", "is not between"),
    ("watch.resync_seconds", ".nan", "is not between"), ("watch.resync_seconds", ".inf", "is not between"),
    ("watch.resync_seconds", "[1]", "is not a number of seconds"),
    ("watch.status_group", "a b", "has to be text without blanks"),
    ("watch.status_group", "{a: 1}", "has to be text without blanks"),
    ("watch.qmp", "maybe", "is neither true nor false"), ("watch.qmp", "2", "is neither true nor false"),
    ("watch.qmp", "", "is neither true nor false"),
    ("log.level", "loud", "is none of debug, info, warning, error"), ("log.level", "[info]", "is none of"),
])
def test_a_bad_value_is_refused_with_file_key_and_value(tmp_path: Path, key: str, value: str, why: str) -> None:
    section, _, name = key.partition(".")
    path = write(tmp_path, f"{section}:\n  {name}: {value}\n")
    with pytest.raises(ConfigError) as caught:
        settings.load(path, {}, {})
    said = str(caught.value)
    assert said.startswith(f"{path}: {key}: ")
    assert why in said
    assert said.isprintable()
    assert caught.value.hint


def test_a_bad_value_names_the_variable_or_the_flag_it_came_from() -> None:
    with pytest.raises(ConfigError, match=r"^environment VMPIN_LOG_LEVEL: log\.level: 'loud': is none of debug"):
        settings.load(None, {"VMPIN_LOG_LEVEL": "loud"}, {})
    with pytest.raises(ConfigError, match=r"^flag: watch\.qmp: 'x': is neither true nor false"):
        settings.load(None, {}, {"watch.qmp": "x"})
    with pytest.raises(ConfigError, match=r"^environment VMPIN_NODE_HOUSEKEEPING: node\.housekeeping: 'x'"):
        settings.load(None, {"VMPIN_NODE_HOUSEKEEPING": "x"}, {})


@pytest.mark.parametrize(("name", "hint"), [
    ("VMPIN_LOG_LEVLE", "did you mean 'VMPIN_LOG_LEVEL'?"), ("VMPIN_CONFIG", "`vmpin config` lists every key"),
    ("VMPIN_", ""), ("VMPIN_DRIFT_ONCONTENTION", "VMPIN_DRIFT_ON_CONTENTION")])
def test_a_variable_that_sets_no_key_is_refused(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings.load(None, {"PATH": "/bin", name: "x"}, {})
    assert str(caught.value) == f"environment {name}: sets no key that is known"
    assert hint in caught.value.hint


def test_variables_that_are_not_vmpins_are_let_be() -> None:
    others = {"VMPIN": "x", "MY_VMPIN_LOG": "x", "vmpin_x": "x", "VMPIN_DEBUG": "1", "VMPIN_LAB_CACHE": "/x",
              "VMPIN_SOAK_ALONE": "1", "VMPIN_FUZZ_SEED": "1"}
    assert settings.load(None, others, {}).values == settings.load(None, {}, {}).values


@pytest.mark.parametrize("service", ["VMPIN", "VMPIN_METRICS", "VMPIN_GUEST"])
def test_what_kubernetes_says_of_a_service_is_no_key(service: str) -> None:
    """A Service of the pod's namespace: vmpin-guest would even set guest.port."""
    given = {f"{service}_SERVICE_HOST": "10.0.0.1", f"{service}_SERVICE_PORT": "9750",
             f"{service}_SERVICE_PORT_METRICS": "9750", f"{service}_PORT": "tcp://10.0.0.1:9750",
             f"{service}_PORT_9750_TCP": "tcp://10.0.0.1:9750", f"{service}_PORT_9750_TCP_ADDR": "10.0.0.1"}
    found = settings.load(None, given | {"VMPIN_LOG_LEVEL": "debug"}, {})
    assert {key for key, origin in found.origin.items() if origin != "default"} == {"log.level"}
    del given[f"{service}_SERVICE_HOST"]
    with pytest.raises(ConfigError, match=f"environment {service}_"):
        settings.load(None, given, {})


def test_a_value_is_judged_only_where_it_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "log: {level: loud}")
    assert settings.load(path, {"VMPIN_LOG_LEVEL": "error"}, {}).log.level == "error"


def test_a_flag_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        settings.load(None, {}, {"log.levle": "info"})
    assert str(caught.value) == "--set log.levle=info: unknown key 'log.levle'"
    assert "log.level" in caught.value.hint


@pytest.mark.parametrize(("text", "why"), [
    ("log: {level: info}\nlog: {level: debug}", "2: key 'log' cannot be used or is there twice"),
    ("log: {level: info, level: debug}", "1: key 'level' cannot be used or is there twice"),
    ("policy: &a {vhost: shared}\ndrift:\n  <<: *a\n", "3: a merge key (<<) is not read: write the keys themselves"),
    ("log: {", "1: "),
    ("watch: {resync_seconds: 0x" + "f" * 900 + "}", " 'resync_seconds' holds a number of 3600 bits"),
    ("watch: {qmp: !!bool x}", " not YAML: "),
    ("watch: {qmp: " + "[" * 50 + "]" * 50 + "}", " is nested more than 32 deep"),
])
def test_what_is_no_yaml_is_refused_with_the_file(tmp_path: Path, text: str, why: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        settings.load(path, {}, {})
    assert str(caught.value).startswith(f"{path}:{why}")


def test_every_variable_is_used() -> None:
    defaults = settings.load(None, {}, {})
    for setting in SETTINGS:
        for text in ("/x", "1-3", "7", "off", "on", "debug", "union", "shared", "leave", "unpin",
                     "change", "unix:/x", "word", "own", "exclusive", "core", "spread", "nodes", "cmk",
                     *re.findall(r"[a-z]+", setting.help)):
            found = settings.load_usable(None, {setting.variable: text}, {})
            if found.values[setting.key] != defaults.values[setting.key]:
                break
        else:
            pytest.fail(f"{setting.variable} takes none of the values")
        assert found.origin == {**defaults.origin, setting.key: f"environment {setting.variable}"}
        assert found.values == {**defaults.values, setting.key: found.values[setting.key]}


@pytest.mark.parametrize(("patterns", "handler", "via"), [
    ("", "", "auto"), ("", "kata-qemu", "auto"), ("kata-tdx", "kata-qemu", "auto"),
    ("kata-tdx,kata-s*", "kata-snp", "off"), ("kata-tdx", "kata-tdx", "off"),
    # It may be any.
    ("kata-tdx", "", "off")])
def test_guests_of_some_handlers_are_left_alone(patterns: str, handler: str, via: str) -> None:
    assert settings.load(None, {}, {"guest.disabled_handlers": patterns}).guest.via_for(handler) == via
