"""Longer reports about a node: audit, residency over time, the map of its CPUs, the bundle for a bug report.

What stays out: checks of the node's configuration (doctor). Imported by doctor, daemon and cli.
"""
