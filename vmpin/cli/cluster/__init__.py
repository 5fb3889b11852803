"""The command line for every node of a cluster: `--all-nodes`, and the kubectl plugin.

What stays out: the verbs themselves, which are about this node without these options. Imported by the rest of cli."""
