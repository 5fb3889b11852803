"""The verbs of the allocator: `vmpin allocations` and `vmpin set`. Imported by cli.main alone.

What stays out: what they show (status), and what they decide (allocation)."""
