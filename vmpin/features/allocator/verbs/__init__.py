"""The verbs of the allocator, `vmpin allocations` and `vmpin set`; and its report, for other verbs."""
