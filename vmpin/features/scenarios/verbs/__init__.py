"""What scenarios add to `vmpin plan` and `vmpin map`."""
