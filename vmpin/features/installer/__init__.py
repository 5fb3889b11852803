"""What is put on a node and taken off it: the OCI hook with its registrations, and the service's unit."""
