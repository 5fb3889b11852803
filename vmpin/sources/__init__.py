"""Sources of containers and their CPUs: hook messages (hook_state, spool, pids), NRI (nri), files of Kata and cgroups
(disk), PodResources (pod_resources, grpc_call), and whether a kubelet runs (kubelet_process). Most of them return
events of the domain.
"""
