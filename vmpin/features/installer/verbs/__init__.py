"""The verbs of the installer."""
