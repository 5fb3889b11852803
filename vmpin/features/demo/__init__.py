"""`vmpin demo`: what the program does, shown on this machine with small VMs of its own."""
