"""Facts of scheduling of a node on which nothing is wrong, for the tests of the doctor."""

FACTS: dict[str, object] = {}
