"""The VMs of the node: which processes are VMMs and their helpers, and the role of each of their threads.

process_table finds the processes; virtual_machine is one VM with its states; inventory keeps all of them, with threads
for the roles of each VM's threads; vmms has the table of VMMs, each of which has a module; the others read KVM, QMP
and what a guest runs on.
"""
