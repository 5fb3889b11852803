"""The network's side of VMs: the path from a VM's device to the node's NIC, which vhost worker serves which queue, and
what is far from its NIC or disk. The NUMA node of a VM's NIC is what `policy.vhost: near` goes by."""
