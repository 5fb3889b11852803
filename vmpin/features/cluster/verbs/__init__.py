"""The cluster's verbs: `vmpin reporter`, and what status and verify do with --all-nodes."""
