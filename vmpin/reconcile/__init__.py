"""Passes over the node: state, placement, operations, masks; the state kept over a restart; leaving a node.

node_state, view: the state and its read-only view. intake, cpuset_files: reports applied to it. urgency: which reports
may wait. reconciler, one_pass, teardown: the passes. placement_cache, kept_topology, runtime_waits, source_findings:
parts of the state. pod_lookup: names for the log. state_file, state_format: the state's file.
"""
