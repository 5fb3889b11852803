"""The verbs of the allocator: `vmpin allocations` and `vmpin set`."""
