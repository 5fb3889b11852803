"""Where threads ran over time: samples of VMs' threads, the books that outlive a restart, and every thread of the
node.

What stays out: the arithmetic (domain.proof). Imported by daemon, reports and cli.
"""
