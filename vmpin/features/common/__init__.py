"""What several features use and the core does not. It is no feature, and imports none.

cri: calls of the runtime. kubelet_config, mounted_paths, service_units: the kubelet's configuration. other_allocators,
registered_hooks, socket_peers: what else is on the node. cpu_times: where threads ran. kept_database, sealed_file:
features' files. metric_families, pod_labels: metrics and their labels. option_values: of verbs. finding, cpu_owner,
held_cpus, samples, scenario_values: types of features' parts.
"""
