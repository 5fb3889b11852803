"""A wish as JSON data and back, for the ledger's file and the annotation of a grant.

Only what differs from the default is there.
"""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish
from vmpin.features.allocator.texts.annotations import changed

_KEYS = ("policy", "align", "smt", "kind", "near", "spare")


def wish_data(wish: CpuWish) -> dict[str, object]:
    """Return a wish by the keys' short names, with values as annotations have them."""
    found: dict[str, object] = {}
    if wish.policy is not None:
        found["policy"] = f"group:{wish.group}" if wish.policy is CpuPolicy.GROUP else str(wish.policy)
    if wish.align is not None:
        found["align"] = f"{wish.align}!" if wish.align_required else str(wish.align)
    others = {"smt": wish.smt, "kind": wish.kind, "near": wish.near, "spare": wish.spare}
    plain = CpuWish()._asdict()
    found |= {key: str(value) for key, value in others.items() if value != plain[key]}
    return {**found, "exclude_reserved": True} if wish.exclude_reserved else found


def wish_of(data: object) -> CpuWish:
    """Read a wish from its data. :raises ValueError: for what `wish_data` never makes; the message names the key and
    the value."""
    if not isinstance(data, Mapping):
        raise ValueError(f"a wish is an object, not {data!r:.80}")
    unknown = data.keys() - {*_KEYS, "exclude_reserved"}
    if unknown:
        raise ValueError(f"a wish has the unknown key {min(map(str, unknown))!r:.80}")
    excluded = data.get("exclude_reserved", False)
    texts = {key: value for key, value in data.items() if key != "exclude_reserved"}
    for key, value in [*texts.items(), ("exclude_reserved", excluded)]:
        if not isinstance(value, bool if key == "exclude_reserved" else str):
            raise ValueError(f"{key}={value!r:.80} of a wish has the wrong type")
    return changed(CpuWish(), texts)._replace(exclude_reserved=excluded)
