"""Parsers for files of container runtimes, Kata and the kubelet: hook states, bundles, Kata's sandboxes, the kubelet's
checkpoint, annotations, TOML.
"""
