"""The map of a node's CPUs (node_map), its forms (text, svg, map_document), and maps of planned and other nodes.

Pure."""
