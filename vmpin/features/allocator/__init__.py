"""The allocator (docs/allocation.md): the CPUs of each container, where vmpin itself gives them out (`allocate.mode`).

grants: requests, the ledger, and the decision on each of the runtime's calls. search: the best CPUs for a request.
texts: annotations and the ledger's data. These three are pure: the same input gives the same output, whatever the
order of maps."""
