"""The configuration: its settings, their parsers and loading them in layers."""
