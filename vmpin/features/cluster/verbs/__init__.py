"""The cluster's verbs: `vmpin reporter`, and what status, verify and map do with --all-nodes."""
