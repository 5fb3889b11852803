"""One pass over the node: state, placement, operations, masks; what is kept over a restart; leaving a node.

It owns the desired state, ownership and placements.
"""
