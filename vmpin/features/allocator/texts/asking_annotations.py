"""Which annotations ask for CPUs, and whether those of a container are others than before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from vmpin.features.allocator.texts.annotations import DOMAIN, KEYS
from vmpin.features.allocator.texts.peer_annotations import EFFECTIVE_KEYS, POD_KEYS
from vmpin.features.allocator.texts.wish_values import effective, scoped

_OWN = tuple(f"{short}.{DOMAIN}" for short in KEYS)
_DIGEST_BYTES = 12


def asks(key: str) -> bool:
    """Whether an annotation of this key may ask for CPUs: vmpin's own, and those of peers, honoured or not."""
    return key in POD_KEYS or key.partition("/")[0] in (*_OWN, *EFFECTIVE_KEYS)


def asking_digest(annotations: Mapping[str, str], container: str) -> str:
    """A digest of all that a pod's annotations ask for one of its containers, "" where they ask for nothing. Other
    annotations, and those of other containers, do not count. It has the same length however long the texts are."""
    counting: dict[str, object] = {key: value for key in _OWN for _, value in effective(annotations, key, container)}
    # Of these the scope counts, too.
    counting |= {key: (found[0], found[2]) for key in EFFECTIVE_KEYS if (found := scoped(annotations, key, container))}
    counting |= {key: annotations[key] for key in POD_KEYS if key in annotations}
    if not counting:
        return ""
    return hashlib.blake2b(json.dumps(counting, sort_keys=True).encode(), digest_size=_DIGEST_BYTES).hexdigest()
