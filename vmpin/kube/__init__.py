"""What the API server is sent of a node: Events, conditions of pods, NodePinning, labels; as values and plain JSON.

Pure: no clock, no connection; made from the lines of `follow` and from pods as the API server lists them. What stays
out: the connections, and when what is written (reporter, which alone imports this)."""
