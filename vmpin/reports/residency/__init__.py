"""Residency: where threads ran over time. Samples of VMs' threads with books that survive a restart, and samples of
every thread of the machine for the audit."""
