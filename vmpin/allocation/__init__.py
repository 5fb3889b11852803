"""The allocator: the CPUs of each container, where vmpin itself gives them out (`allocate.mode`). The ledger, what a
container may have, and the decision on each of the runtime's calls. Subpackages: `search`, the best CPUs for a
request; `texts`, annotations and the ledger's data; `live`, annotations that change. Pure: the same input gives the
same output, whatever the order of maps."""
