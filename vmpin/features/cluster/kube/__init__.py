"""What the API server is sent of a node: Events, conditions and annotations of pods, NodePinning, labels,
NodeResourceTopology; as values and plain JSON.

Pure: no clock, no connection; made from the lines of `follow` and from pods as the API server lists them. The way back
is untrusted_pod: text about pods, for people, and asked_annotations: what pods ask of the allocator."""
