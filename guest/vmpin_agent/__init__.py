"""vmpin's agent in the guest: keeps each container's processes on the vCPUs that the host assigned to it.

Standard library only, Python 3.9 and newer. Of vmpin it imports `bounded`, `cpuset`, `named_tuple` and `protocol`,
which are packed with it (vmpin.features.installer.agent_zipapp)."""

#: The version of vmpin that it belongs to.
VERSION = "0.1.0"
