"""A scenario with every key, as text: placed by test_scenario, spoilt by test_scenario_refusals."""

from __future__ import annotations

EXAMPLE = """
topology:                 # absent: this machine's
  online: "0-15"
  cores: ["0,8", "1,9"]   # SMT groups; CPUs not named are cores of their own; offline CPUs may be named
  nodes: {0: "0-3,8-11", 1: "4-7,12-15"}
housekeeping: "0"         # optional
shared_pool: "0-1,8-9"    # optional: the kubelet's default set
policy: {vcpus: auto, spare_vcpus: sandbox, iothreads: sandbox, vhost: sandbox, emulator: sandbox}
sandboxes:
  - id: pod-a
    vcpus: 3              # or [{id: 0, core: 0, node: 0}, {id: 7, core: 1, node: 0}]
    iothreads: 1
    vhost: 2
    containers:
      - {id: main, cpuset: "2-3", exclusive: true}    # state: created|running|stopped (default running)
      - {id: sidecar, cpuset: "0-1,8-9"}
      - {id: init}                                    # no cpuset
"""
