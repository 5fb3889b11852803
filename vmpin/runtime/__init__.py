"""Files of the container runtimes, Kata and the kubelet: the state a hook is given, bundles, Kata's sandboxes, the
kubelet's checkpoint, annotations, TOML.

Bytes and paths in, values out. What stays out: when they are read (sources), and checks of a node's configuration
(doctor.collect). Imported by sources, reconcile, guests, daemon and doctor; imports host and domain, and not vmm.
"""
