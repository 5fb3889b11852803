"""Sources of containers and their CPUs: hook messages (hook_state, spool, pids), NRI (nri), files of Kata and cgroups
(disk), PodResources (pod_resources), CRI (cri, grpc_call), the kubelet's configuration and process (kubelet_config,
kubelet_process). Most of them return events of the domain.
"""
