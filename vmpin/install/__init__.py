"""What an installation has: its version, the paths of the wheel's data files, and the guest agent's zipapp."""
