"""The active profile of tuned, as tuned merges it."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import make_tree

from vmpin.domain.facts import FoundSetting
from vmpin.host.files import Files
from vmpin.host.tuned_profile import tuned_profile

TUNED = """
    etc/tuned/active_profile = mine
    etc/tuned/mine/tuned.conf = [main]\\ninclude=cpu-partitioning\\n[scheduler]\\nps_blacklist=.*qemu.*
    usr/lib/tuned/cpu-partitioning/tuned.conf = [main]\\ninclude=network-latency,mine\\n[scheduler]\\n\
isolated_cores=2-3 # why\\nps_blacklist=.*pmd.*;.*qemu-kvm.*\\n[sysctl]\\nkernel.x = 1
    usr/lib/tuned/profiles/network-latency/tuned.conf = [main]\\nsummary=x\\n[affinity]\\ntype=scheduler\\n\
group.a=0:f:1:*\\npriority=3
"""


def test_tuneds_profile_is_read_with_those_that_it_includes(tmp_path: Path) -> None:
    """The including one has the last word, a circle ends, and options that concern no mask are left out."""
    found = tuned_profile(Files(make_tree(tmp_path, TUNED)))
    assert found.profile == "mine"
    assert found.files == ("/etc/tuned/mine/tuned.conf", "/usr/lib/tuned/cpu-partitioning/tuned.conf",
                           "/usr/lib/tuned/profiles/network-latency/tuned.conf")
    assert {key: (setting.value, setting.file.split("/")[-2]) for key, setting in found.scheduler.items()} == {
        "group.a": ("0:f:1:*", "network-latency"), "isolated_cores": ("2-3", "cpu-partitioning"),
        "ps_blacklist": (".*qemu.*", "mine")}
    assert found.lost == ()


@pytest.mark.parametrize("tree", ["etc/tuned/active_profile = ../../secret\n", "etc/tuned/active_profile = gone\n",
                                  "etc/tuned/active_profile = a\netc/tuned/a/tuned.conf = no section\n",
                                  f"etc/tuned/active_profile = a\netc/tuned/a/tuned.conf = [vm]\\n#{'x' * 65536}\n",
                                  "etc/x = 1\n"])
def test_a_profile_that_cannot_be_read_says_nothing(tmp_path: Path, tree: str) -> None:
    found = tuned_profile(Files(make_tree(tmp_path, tree)))
    assert not found.scheduler
    assert found.lost == tuple(found.profile.split())


def test_an_included_profile_that_is_gone_is_missed_unless_it_may_be(tmp_path: Path) -> None:
    tree = "etc/tuned/active_profile = a\netc/tuned/a/tuned.conf = [main]\\ninclude=gone,-local\n"
    assert tuned_profile(Files(make_tree(tmp_path, tree))).lost == ("gone",)


#: A profile over one that moves threads, and what is left of the scheduler's options.
OVER = [
    ("[scheduler]\\nenabled=false", {}), ("[scheduler]\\nenabled=0", {}), ("[scheduler]\\nenabled=no", {}),
    ("[scheduler]\\nenabled=1\\n; isolated_cores=9\\n", {"isolated_cores": "1", "ps_blacklist": "a;b"}),
    ("[scheduler]\\nreplace=1\\nsched_autogroup_enabled=0", {}),
    ("[scheduler]\\nreplace=True\\nruntime=0", {"runtime": "0"}),
    ("[scheduler]\\nreplace=0\\nruntime=0", {"isolated_cores": "1", "ps_blacklist": "a;b", "runtime": "0"}),
    ("[scheduler]\\ndrop=isolated_cores, runtime", {"ps_blacklist": "a;b"}),
    ("[scheduler]\\ntype=sysctl", {}),
    ("[other]\\ntype=scheduler\\nenabled=false\\ngroup.x=0:f:1:2:x",
     {"isolated_cores": "1", "ps_blacklist": "a;b"}),
    ("[other]\\ntype=scheduler\\nreplace=1\\nruntime=5",
     {"isolated_cores": "1", "ps_blacklist": "a;b", "runtime": "5"}),
]


@pytest.mark.parametrize(("text", "left"), OVER)
@pytest.mark.parametrize("include", ["base", "first ; base", "base,-none"])
def test_tuneds_sections_are_merged_as_tuned_merges_them(
        tmp_path: Path, text: str, left: dict[str, str], include: str) -> None:
    found = tuned_profile(Files(make_tree(tmp_path, f"""
        etc/tuned/active_profile = mine
        etc/tuned/mine/tuned.conf = {text}\\n[main]\\ninclude={include}
        usr/lib/tuned/base/tuned.conf = [scheduler]\\nisolated_cores=1\\nps_blacklist=a;b
        usr/lib/tuned/first/tuned.conf = [vm]\\ntransparent_hugepages=never
    """)))
    assert ({key: setting.value for key, setting in found.scheduler.items()}, found.lost) == (left, ())


def test_a_section_switched_off_below_is_on_again_where_a_profile_over_it_has_it(tmp_path: Path) -> None:
    found = tuned_profile(Files(make_tree(tmp_path, """
        etc/tuned/active_profile = mine
        etc/tuned/mine/tuned.conf = [main]\\ninclude=base\\n[scheduler]\\nruntime=0
        usr/lib/tuned/base/tuned.conf = [scheduler]\\nenabled=false\\nisolated_cores=1
    """)))
    assert set(found.scheduler) == {"runtime", "isolated_cores"}


def test_a_profile_of_tuned_may_include_the_one_of_its_name_that_it_hides(tmp_path: Path) -> None:
    found = tuned_profile(Files(make_tree(tmp_path, """
        etc/tuned/active_profile = partitioning
        etc/tuned/partitioning/tuned.conf = [main]\\ninclude=partitioning
        usr/lib/tuned/partitioning/tuned.conf = [scheduler]\\nisolated_cores=1
    """)))
    assert found.scheduler == {"isolated_cores": FoundSetting("1", "/usr/lib/tuned/partitioning/tuned.conf")}


#: [variables] of the profile and its included one, and the CPUs that are isolated by them.
VARIABLES = [
    ("", "1", "1"), ("x=2", "${x}", "2"), ("x=", "${x}", ""), ("y=3", "${x}", "${x}"),
    ("include=/etc/tuned/v.conf", "${x}", "4-5"), ("include=/etc/tuned/v.conf\\nx=6", "${x}", "6"),
    ("include=/etc/tuned/gone.conf", "${x}", "${x}"), ("x=7\\ny=${x},8", "${y}", "7,8"),
    ("x=1", "${f:cpulist_present:${x}}", "${f:cpulist_present:1}"),
]
#: [variables] of the profile and its included one: a later section may put its variables first.
PREPENDED = [("y=${x}", "x=1", "${x}"), ("y=${x}", "x=1\\nprepend=1", "1"), ("y=1", "drop=y", "1"),
             ("x=2\\ny=${x}", "x=1\\nprepend=1", "1")]


@pytest.mark.parametrize(("variables", "cores", "expanded"), VARIABLES)
@pytest.mark.parametrize("below", [True, False])
def test_variables_of_a_profile_are_expanded(
        tmp_path: Path, variables: str, cores: str, expanded: str, below: bool) -> None:
    own, base = ("", variables) if below else (variables, "")
    found = tuned_profile(Files(make_tree(tmp_path, f"""
        etc/tuned/active_profile = mine
        etc/tuned/v.conf = # why\\nx=4-5\\n
        etc/tuned/mine/tuned.conf = [main]\\ninclude=base\\n[variables]\\n{own}
        usr/lib/tuned/base/tuned.conf = [scheduler]\\nisolated_cores={cores}\\n[variables]\\n{base}
    """)))
    assert found.scheduler["isolated_cores"].value == expanded


@pytest.mark.parametrize(("condition", "applies"), [
    ("uname_regex=Linux", True), ("uname_regex=^NoSystem", False), ("cpuinfo_regex=.", True),
    ("cpuinfo_regex=^no such line", False), ("uname_regex=(", True),
    ("uname_regex=${no}\\n[variables]\\nno=^NoSystem", False)])
def test_a_section_for_another_machine_sets_nothing(tmp_path: Path, condition: str, applies: bool) -> None:
    found = tuned_profile(Files(make_tree(tmp_path, f"""
        etc/tuned/active_profile = mine
        etc/tuned/mine/tuned.conf = [scheduler]\\nisolated_cores=1\\n{condition}
    """)))
    assert bool(found.scheduler) is applies


@pytest.mark.parametrize(("base", "own", "expanded"), PREPENDED)
@pytest.mark.parametrize("section", ["variables", "other"])
def test_variables_of_an_including_profile_may_come_first(
        tmp_path: Path, base: str, own: str, expanded: str, section: str) -> None:
    found = tuned_profile(Files(make_tree(tmp_path, f"""
        etc/tuned/active_profile = mine
        etc/tuned/mine/tuned.conf = [main]\\ninclude=base\\n[{section}]\\ntype=variables\\n{own}
        usr/lib/tuned/base/tuned.conf = [scheduler]\\nisolated_cores=${{y}}\\n[variables]\\n{base}
    """)))
    assert found.scheduler["isolated_cores"].value == expanded


def test_tuned_with_an_empty_file_for_its_profile_is_switched_off(tmp_path: Path) -> None:
    """As `tuned-adm off` leaves it; without the file it is unknown."""
    assert tuned_profile(Files(make_tree(tmp_path / "a", "etc/tuned/active_profile = \n"))).off
    assert not tuned_profile(Files(make_tree(tmp_path / "b", "etc/tuned/\n"))).off


@pytest.mark.parametrize(("include", "chosen"), [
    ("${f:virt_check:partitioning:partitioning}", True), ("${f:regex_search_ternary:${f:exec:uname:-r}:[0-9]:p:gone}"
                                                         "artitioning", True),
    ("-provider-${f:exec:cat:/var/lib/ocp-tuned/provider},openshift", True), ("-a-${f:exec:cat:/gone},gone", False),
    ("partitioning${f:exec:cat:/gone}", False),
    ("none,partitioning${f:regex_search_ternary:${f:exec:uname:-r}:-never-:,rt:};\\n    none", True),
    ("${f:lscpu_check:Architecture\\:\\s*.:partitioning:Vendor ID\\:\\s*AuthenticAMD:gone}", True),
    ("${f:cpuinfo_check:^no such line:gone:.:partitioning:gone}", True), ("${f:calc_isolated_cores:1}", False)])
def test_functions_choose_the_included_profiles_of_tuned(tmp_path: Path, include: str, chosen: bool) -> None:
    """As in OpenShift's own profiles; what a function of another kind chooses is unknown."""
    found = tuned_profile(Files(make_tree(tmp_path, f"""
        etc/tuned/active_profile = mine
        etc/tuned/mine/tuned.conf = [main]\\ninclude={include}
        etc/tuned/none/tuned.conf = [vm]\\ntransparent_hugepages=never
        usr/lib/tuned/provider-aws/tuned.conf = [main]\\ninclude=partitioning
        usr/lib/tuned/openshift/tuned.conf = [vm]\\ntransparent_hugepages=never
        usr/lib/tuned/partitioning/tuned.conf = [scheduler]\\nisolated_cores=1
        var/lib/ocp-tuned/provider = aws
    """)))
    assert (bool(found.scheduler), not found.lost) == (chosen, chosen)


#: Text that takes time or memory by its square or more: variables that double, blanks, patterns that go back.
BOMBS = {
    "variables": "x0=aaaa\\n" + "".join(f"x{n + 1}=${{x{n}}}${{x{n}}}\\n" for n in range(200)),
    "main": f"include=a{' ' * 60000}b", "scheduler": f"a{' ' * 60000}b", "vm": f"drop=a{' ' * 60000}b",
    "s": "type=scheduler\\ncpuinfo_regex=(([\\s\\S]*)*)*\\1x", "t": "type=scheduler\\nuname_regex=((.*)*)*x!",
}


@pytest.mark.parametrize("section", BOMBS)
def test_a_hostile_profile_of_tuned_is_read_in_bounded_time(tmp_path: Path, section: str) -> None:
    tuned = tuned_profile(Files(make_tree(tmp_path, f"""
        etc/tuned/active_profile = mine
        etc/tuned/mine/tuned.conf = [scheduler]\\nisolated_cores=${{x200}}\\n[{section}]\\n{BOMBS[section]}
    """)))
    assert all(len(str(setting.value)) < 1 << 14 for setting in tuned.scheduler.values())


@pytest.mark.parametrize("text", [
    "a = x${f:exec:cat:/b}", "a = ${f:exec:cat:/a}${f:exec:cat:/a}y", "a = ${f:cpuinfo_check:" + "(" * 500 + ":x:y}"])
def test_files_that_contain_themselves_and_endless_patterns_end(tmp_path: Path, text: str) -> None:
    """Of a program that only calls itself tuned: it has a root directory of its own choice."""
    value = text.removeprefix("a = ")
    tuned = tuned_profile(Files(make_tree(tmp_path, f"""
        a = {value}
        b = y${{f:exec:cat:/a}}
        etc/tuned/active_profile = mine
        etc/tuned/mine/tuned.conf = [main]\\ninclude={value}\\n[vm]\\nuname_regex=a{{4294967296}}\\n
    """)))
    assert tuned.profile == "mine"


@pytest.mark.parametrize("separator", [", ", ";"])
def test_tuneds_profiles_are_searched_in_its_own_directories(tmp_path: Path, separator: str) -> None:
    """The last of profile_dirs is the strongest, and the default ones are not searched then."""
    found = tuned_profile(Files(make_tree(tmp_path, f"""
        etc/tuned/tuned-main.conf = # profile_dirs = /x\\nprofile_dirs = /usr/lib/tuned{separator}/var/lib/ocp/profiles
        etc/tuned/active_profile = mine
        etc/tuned/mine/tuned.conf = [scheduler]\\nisolated_cores=1
        usr/lib/tuned/mine/tuned.conf = [scheduler]\\nisolated_cores=2
        var/lib/ocp/profiles/mine/tuned.conf = [main]\\ninclude=mine
    """)))
    assert found.files == ("/var/lib/ocp/profiles/mine/tuned.conf", "/usr/lib/tuned/mine/tuned.conf")
    assert found.scheduler["isolated_cores"].value == "2"


@pytest.mark.parametrize("active", ["base", ""])
def test_tuneds_post_loaded_profile_is_merged_last(tmp_path: Path, active: str) -> None:
    found = tuned_profile(Files(make_tree(tmp_path, f"""
        etc/tuned/active_profile = {active}
        etc/tuned/post_loaded_profile = last
        etc/tuned/base/tuned.conf = [scheduler]\\nisolated_cores=1
        etc/tuned/last/tuned.conf = [scheduler]\\nisolated_cores=2
    """)))
    assert (found.scheduler["isolated_cores"].value, found.profile.split()[-1], found.off) == ("2", "last", False)
