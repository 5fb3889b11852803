"""Which process is a VMM, and which of its threads is which."""
