"""Who gets which CPUs, where vmpin itself gives them out (`allocate.mode`): the search for the best CPUs, the ledger
of what was given, what annotations ask for, and the decision on each of the runtime's calls. Pure: the same input
gives the same output, whatever the order of maps. What stays out: reading the machine (host.sysfs), the runtime's
calls (sources.nri), the ledger's file (reconcile), and where a VM's threads go (placement). Imported by everything
above floor 2.
"""
