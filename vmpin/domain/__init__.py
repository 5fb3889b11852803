"""What vmpin is about, as values: sandboxes, containers and threads, CPUs and their topology, events, the desired
state, drift, proof, counters and what was found on a node.

Pure: no system call, no clock, no log. What stays out: who may run where (placement), and everything that reads or
acts. Every package may import it.
"""
