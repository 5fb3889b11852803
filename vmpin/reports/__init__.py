"""Longer reports about a node: audit, residency over time, the map of its CPUs, the bundle for a bug report."""
