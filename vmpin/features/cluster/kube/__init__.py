"""The objects that the API server is sent about a node, as values and plain JSON: Events and conditions of pods,
NodePinning, labels, NodeResourceTopology.

Pure: no clock, no connection; built from the lines of `follow` and from pods as the API server lists them. Two modules
are for the way back to the watcher: watched_annotations has the CPUs that pods ask of the allocator, reporter_report
why the API server is not reached."""
