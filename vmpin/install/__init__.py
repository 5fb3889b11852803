"""Files that vmpin puts on a node: the OCI hook with its registrations, and the guest agent's zipapp; and the paths of
the data files that travel in the wheel.

What stays out: the command line (cli). Imported by cli and demo.
"""
