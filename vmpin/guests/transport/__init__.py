"""Channels into a guest: what they have in common (channel), a module for each class, and finding them (discovery)."""
