"""The checks of a node: each turns facts into one finding with its level, evidence and remedy.

The checks are pure; `node_facts` and `own_facts` read the facts. Beside them (`others`) the
processes on exclusive CPUs."""
