"""vmpin's agent in the guest: keeps each container's processes on the vCPUs that the host assigned to it.

Standard library only, Python 3.9 and newer. Of vmpin it imports `bounded`, `cpuset` and `protocol`, which are packed
with it (vmpin.install.agent_zipapp). What stays out: the assignment itself (vmpin.guests.vcpu_map, on the host), and
the ways into a guest's image (guest/README.md). Imported by no package of vmpin."""

#: The version of vmpin that it belongs to.
VERSION = "0.1.0"
