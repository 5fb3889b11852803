"""Files of the container runtimes, Kata and the kubelet: the state a hook is given, bundles, Kata's sandboxes, the
kubelet's checkpoint, annotations, TOML.

Bytes and paths in, values out.
"""
