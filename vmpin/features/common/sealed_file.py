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
    there is nothing to keep, as `nothing` is; `loss` is the consequence of a damaged file, as a text."""

    version: int
    parse: Callable[[Mapping[str, Any]], Content]
    data: Callable[[Content], Mapping[str, object]]
    nothing: Content
    loss: str


class SealedFile(Generic[Content]):
    """Each subclass has a form. :param boot_id: a file of another boot counts as none.
    :param aside: whether a damaged one is set aside: not in a dry run."""

    form: FileForm[Content]

    def __init__(self, path: Path, boot_id: str, aside: bool = True) -> None:
        self.path, self._boot_id, self._aside = path, boot_id, aside

    def load(self) -> Content:
        """Return what was saved last; nothing without a file, and of a damaged one.
        :raises OSError: it cannot be read."""
        try:
            raw, _ = read_regular(self.path, MAX_BYTES)
        except FileNotFoundError:
            return self.form.nothing
        try:
            body = unsealed(raw, self.form.version)
            return self.form.parse(body) if body["boot_id"] == self._boot_id else self.form.nothing
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            logger.warning("%s", set_file_aside(self.path, err, aside=self._aside, then=self.form.loss))
            return self.form.nothing

    @property
    def damaged(self) -> Path | None:
        """The damaged file that was set aside; None for none."""
        _, damaged = beside(self.path)
        return damaged if damaged.exists() else None

    def save(self, content: Content) -> None:
        """Replace the file; remove it where there is nothing to keep. :raises OSError: nothing may be changed then."""
        data = self.form.data(content)
        if any(data.values()):
            replace(self.path, sealed(dumps({"version": self.form.version, "boot_id": self._boot_id, **data})))
        else:
            self.path.unlink(missing_ok=True)
