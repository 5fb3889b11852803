"""All nodes of a cluster by their NodePinnings: what `vmpin status|verify --all-nodes` reads, judges and shows.

Pure: no clock and no connection; requests go through a function that the caller passes. Each object was written by the
reporter of another node, so every text and number of it is bounded, and holds nothing that steers a terminal."""
