"""What is wrong on a node: the checks turn facts into findings with level, evidence and remedy, and are pure;
`node_facts` reads the facts. And the data for a bug report, in one archive (`gather`).

Lists name what goes into that, not what is left out: no environment of any process, no command line except of managed
VMMs and their helpers (without secrets), no annotation, and of other programs' configurations only the keys that
concern CPUs.
docs/doctor.md and docs/gather.md describe it."""

from __future__ import annotations

from vmpin.feature import Feature

_EXAMPLES = {"  vmpin unpin ": """\
  vmpin doctor               exit code 1 if nothing keeps threads in place, or a fault prevents it; with remedies
  vmpin unpin """, "\nexit codes:": """\
  vmpin gather               the data for a bug report, in one file

exit codes:"""}
FEATURE = Feature(name="doctor", verbs={"doctor": "verbs.doctor", "gather": "verbs.gather"}, examples=_EXAMPLES,
                  checks="checks.CHECKS")
