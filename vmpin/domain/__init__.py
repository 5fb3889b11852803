"""The domain as values: sandboxes, containers, threads, CPUs, events, and what follows from events alone.

model, topology, events: the nouns. desired_state: what the sources reported. kubelet_cpus: what the kubelet assigned;
assignments: what any authority decides; policy: what the operator decides. sandbox_placement: what follows for a
sandbox's threads. drift, contention: masks that others set. counters, facts, guest_report: values that are measured or
shown. runtime_call: a container as a call of the runtime shows it, and what the answer can change. distributions,
foreign_pattern, tuned_movers: other programs' files. pod_names, terminal, wrapping: texts; those from outside are made
safe for a terminal.

Pure: no system call, no clock, no log.
"""
