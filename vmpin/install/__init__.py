"""Files put on a node: the OCI hook with its registrations, the guest agent's zipapp; paths of the wheel's data
files."""
