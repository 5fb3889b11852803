"""The checks of a node: each turns facts into one finding with its level, evidence and remedy.

The checks are pure; the subpackage `collect` reads the facts."""
