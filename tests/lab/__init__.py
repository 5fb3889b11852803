"""The lab: a whole node in a virtual machine, in software emulation, in which vmpin meets real KVM.

`python -m lab --help` (with tests/ on the module path; `make test-lab`, `make lab-shell`). The node has 8 CPUs on two
sockets, loadable modules, cgroups of its own and KVM, whatever the machine it is run on has. docs/testing.md shows
what for. Of the host's side only the standard library is used; node_tests/ is what runs in the node.
"""
