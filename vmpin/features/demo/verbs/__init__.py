"""The verb of the demo."""
