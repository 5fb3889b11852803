"""What an installation has: its version, and the paths of the wheel's data files."""
