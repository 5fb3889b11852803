"""The VMs of the node: which processes are VMMs and their helpers, and the role of each of their threads.

process_table finds the processes; virtual_machine is one VM with its states; inventory keeps all of them, with
thread_list and threads for each VM's threads; the others read command lines, KVM, QMP and guest kernels.
"""
