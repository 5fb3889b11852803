"""vmpin beside other programs, on this machine: `make bench-peers`, or `python -m peers` with tests/bench on the path.

    figures, report        pure: samples, medians, ratios, verdicts; a table, JSON, a table for the documentation
    machines, histories    pure: machines of random shape and the requests of each, as the peers get them in a file
    grants, judge, greedy  pure: a peer's grants from a file; what is better; the allocator that is the floor
    quality, decisions     parts that need no peer
    masks, libvirt         part: the masks of a VM of 16 vCPUs
    plugins, runtime       a plugin's process, and the runtime's side of its connection
    events                 parts: footprint, and the cost of a container's lifecycle
    creation               part: what containerd takes to create a container

A peer that is missing is skipped with a sentence."""
