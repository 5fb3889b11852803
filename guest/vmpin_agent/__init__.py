"""vmpin's agent in the guest: keeps each container's processes on the vCPUs that the host says are its own.

The standard library only, Python 3.9 and newer; of vmpin it has what is packed with it (pyz.SHARED). What
stays out: which vCPUs those are (the host's), and how it gets into a guest (guest/README.md).
"""

#: vmpin's.
VERSION = "0.1.0"
