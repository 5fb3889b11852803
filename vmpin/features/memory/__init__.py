"""The memory of VMs: on which of the host's NUMA nodes it is, beside the CPUs of their vCPUs. Nothing moves it."""
