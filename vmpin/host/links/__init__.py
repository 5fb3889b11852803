"""Network interfaces of the node and of its sandboxes, and the NUMA nodes of hardware."""
