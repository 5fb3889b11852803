"""Facts of irqs of a node on which nothing is wrong, for the tests of the doctor."""

FACTS = {"interrupts": [[8, "ttyS0", "0-7", "1", False]], "trouble": "", "banned": {},
         "alone": "", "workqueues": "0-1"}
