"""Who may run where: ownership of CPUs, the sandbox mask, the CPUs of each vCPU and of each role of thread.

Pure: the same input gives the same placement, and the previous placement is part of the input. What stays out:
reading the node, and setting masks (pinning). Imported by config (its policies), pinning, reconcile, status,
reports.
"""
