"""The verb `vmpin logs`."""
