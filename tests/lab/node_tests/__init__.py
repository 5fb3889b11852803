"""What runs in the node, as root, under its own pytest. On any other machine nothing here is collected."""
