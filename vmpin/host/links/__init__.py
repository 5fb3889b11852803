"""Network interfaces of the node and of its sandboxes, and the NUMA nodes of hardware.

What stays out: the path from one to another (network). Imported by status.vm_networks and vmm.vm_nics."""
