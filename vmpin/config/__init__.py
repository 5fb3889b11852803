"""Settings: their names, defaults and limits, from YAML and the environment; and scenario files.

What stays out: acting on them. Imported by reconcile and everything above it.
"""
