"""The network of VMs: the path from a VM's device to the node's NIC, which vhost worker serves which queue, and which
threads are far from their NIC or disk. `policy.vhost: near` goes by the NUMA node of a VM's NIC."""
