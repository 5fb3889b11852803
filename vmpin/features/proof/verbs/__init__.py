"""What the proof adds to `vmpin verify`."""
