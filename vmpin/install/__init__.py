"""Files put on a node: the OCI hook with its registrations, the guest agent's zipapp; paths of the wheel's data files.

What stays out: the command line (cli). Imported by cli and demo."""
