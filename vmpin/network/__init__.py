"""The network's side of VMs: the path from a VM's device to the node's NIC, which vhost worker serves which queue, and
the text about both.

Pure. What stays out: reading interfaces (host.links) and VMMs' descriptors (vmm.network_devices), and placing by it
(placement). Imported by vmm and everything above it."""
