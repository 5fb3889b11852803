"""Channels into a guest: what they have in common (channel), a module for each class, and finding them (discovery).

What stays out: what is sent over a stream (agent_session, kata_agent). Imported by the rest of guests alone."""
