"""The verbs of the allocator: `vmpin allocations` and `vmpin set`; and its report, for other verbs.

What stays out: what they show (status), and what they decide (allocation). Imported by the rest of cli."""
