"""Scenarios: a node described in YAML, placed by the rules that the watcher uses. The machine is not read or touched.

allocator_keys, scenario_pods, scenario_events and scenario_allocation are the allocator's: what it gives out there."""
