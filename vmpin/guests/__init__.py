"""Conversations with guests: vmpin's own agent and Kata's, the map from vCPUs to containers that each is sent.

A guest is never believed: what it reports is shown, with limits, and changes nothing on the host. What stays out:
the messages' format (protocol). Imported by daemon and cli.
"""
