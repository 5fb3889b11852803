"""The kinds of refusals, for counting them. What stays out: the sentences (shortage, placing, eligibility)."""

from __future__ import annotations

#: Too few CPUs are free; none are aligned as asked; the container may not have what it asks for.
REFUSAL_KINDS = ("cpus", "alignment", "request")


def refusal_kind(reason: str) -> str:
    """One of REFUSAL_KINDS, by the sentence of the refusal."""
    if "whole cores" in reason or "within one" in reason or reason.startswith("no "):
        return "alignment"
    return "cpus" if any(text in reason for text in (" are free", " must keep one", " are offline")) else "request"
