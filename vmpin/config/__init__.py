"""The configuration: its settings, their parsers and loading them in layers; and scenario files."""
