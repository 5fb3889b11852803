"""Scenarios: a node described in YAML, placed by the rules that the watcher uses. What features read of one."""
