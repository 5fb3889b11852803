"""What a container may have, the ledger, and the decision on each of the runtime's calls. Pure."""
