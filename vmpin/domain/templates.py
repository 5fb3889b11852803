"""SVG from Jinja templates, each a file beside the module that draws with it. Pure.

Names of pods, threads and processes are any text: every value is made printable, and escaped, where a template puts
it in.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from vmpin.domain.terminal import printable


def render(package: str, template: str, **values: object) -> str:
    """Fill in a template. :param template: a file in `package`. :param values: what it names, all of it."""
    return _environment(package).get_template(template).render(values)


@cache
def _environment(package: str) -> Environment:
    return Environment(loader=PackageLoader(package, ""), autoescape=True, undefined=StrictUndefined,
                       trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, finalize=_shown)


def _shown(value: object) -> object:
    """A text made printable. What is markup already comes from a template, and is of another type."""
    return printable(value) if type(value) is str else value
