"""The scheduling class of vCPUs that are alone on an exclusive CPU, given with `scheduling.vcpu_class`.

vmpin sets no class of other threads. A class is set after the masks of a pass, by a watcher alone, and its thread's
former one is kept in a file until it is given back."""
