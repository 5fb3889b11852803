"""The verbs of the doctor."""
