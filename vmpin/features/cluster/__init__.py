"""Cluster: what the API server is sent about a node, and all nodes of a cluster by what it has of them
(docs/kubernetes.md)."""
