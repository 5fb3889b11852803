"""The command line for every node of a cluster: `--all-nodes`, and the kubectl plugin."""
