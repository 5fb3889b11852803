"""The network's side of VMs: the path from a VM's device to the node's NIC, which vhost worker serves which queue, and
the text about both.

Pure."""
