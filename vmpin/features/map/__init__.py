"""The map of a node's CPUs, of this node, a planned one or another one, in four forms."""
