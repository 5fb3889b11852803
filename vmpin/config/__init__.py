"""The configuration: its settings, their parsers, loading them in layers, and a reload; and scenario files.

settings: the keys and the frozen values. loading: defaults, file, environment, flags. values: one parser a kind of
value. yaml_file, plain_yaml: YAML. reload: what SIGHUP changes. scenario: a described node.

What stays out: acting on the values. Imports domain, placement (its policies) and host (reading a file). Imported by
reconcile and everything above it.
"""
