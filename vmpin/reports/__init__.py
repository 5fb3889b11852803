"""Longer reports about a node: audit, the map of its CPUs, the bundle for a bug report."""
