"""A file of the run directory with what would be lost with the watcher: JSON with a checksum, of one boot, always
replaced as a whole, so that a kill at any moment leaves the former content or the new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from vmpin.host.files import read_regular
from vmpin.named_tuple import NamedTuple
from vmpin.reconcile.state_file import MAX_BYTES, beside, replace, sealed, set_file_aside, unsealed
from vmpin.reconcile.state_format import dumps

logger = logging.getLogger(__name__)

Content = TypeVar("Content")


class FileForm(NamedTuple, Generic[Content]):
    """The form of a file. `parse` may raise what a wrong value causes; `data` has no member that is not empty where
    there is nothing to keep; `loss` is the consequence of a damaged file, as a text."""

    version: int
    parse: Callable[[Mapping[str, Any]], Content]
    data: Callable[[Content], Mapping[str, object]]
    loss: str


class SealedFile(Generic[Content]):
    """:param boot_id: a file of another boot counts as none.
    :param aside: whether a damaged one is set aside: not in a dry run."""

    def __init__(self, path: Path, form: FileForm[Content], boot_id: str, aside: bool = True) -> None:
        self.path, self._form, self._boot_id, self._aside = path, form, boot_id, aside

    def load(self) -> Content | None:
        """Return what was saved last; None without a file, and of a damaged one.
        :raises OSError: it cannot be read."""
        try:
            raw, _ = read_regular(self.path, MAX_BYTES)
        except FileNotFoundError:
            return None
        try:
            body = unsealed(raw, self._form.version)
            return self._form.parse(body) if body["boot_id"] == self._boot_id else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            logger.warning("%s", set_file_aside(self.path, err, aside=self._aside, then=self._form.loss))
            return None

    @property
    def damaged(self) -> Path | None:
        """The damaged file that was set aside; None for none."""
        _, damaged = beside(self.path)
        return damaged if damaged.exists() else None

    def save(self, content: Content) -> None:
        """Replace the file; remove it where there is nothing to keep. :raises OSError: nothing may be changed then."""
        data = self._form.data(content)
        if any(data.values()):
            replace(self.path, sealed(dumps({"version": self._form.version, "boot_id": self._boot_id, **data})))
        else:
            self.path.unlink(missing_ok=True)
