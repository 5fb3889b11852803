"""Passes over the node: state, placement, operations, masks; the state kept over a restart; leaving a node.

node_state, view: the state and its read-only view. intake, cpuset_files: reports applied to it. reconciler, one_pass,
teardown: the passes. placement_cache, nic_nodes, runtime_waits, source_findings: parts of the state. state_file,
state_format: its file.
"""
