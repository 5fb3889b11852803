"""placeholder"""
from vmpin.cli.common import Verbs


def add_parser(verbs: Verbs) -> None: ...
