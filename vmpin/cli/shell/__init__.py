"""The command line as a thing of its own: its grammar, help and repetition."""
