"""Scenarios: a node described in YAML, placed by the rules that the watcher uses. Pure: it reads no file."""
