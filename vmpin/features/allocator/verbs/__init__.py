"""The verb of the allocator, `vmpin alloc`, and its action `set`."""
