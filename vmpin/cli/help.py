"""`vmpin help`. The topics are the pages of docs/, which travel in the wheel, as do the schemas."""

import argparse
from pathlib import Path

from vmpin.cli.output import print_markdown
from vmpin.cli.verbs import Verbs, completed_by, did_you_mean, verb, verb_modules, verbs_parser
from vmpin.errors import UsageError

_EXAMPLES = """\
examples:
  vmpin help                the topics
  vmpin help placement      one of them
  vmpin help status         the same as `vmpin status --help`
  vmpin help --schema status
                            the members of `vmpin status -o json`, as a JSON Schema; without a name: the list
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "help", "explain a command or a topic", run, epilog=_EXAMPLES)
    completed_by(parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a command, or a topic of the list "
                                     "that `vmpin help` prints"), lambda: {**verb_modules(), **pages()})
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of TOPIC's -o json, or list the "
                        "schemas (`vmpin help json`)")


def run(args: argparse.Namespace) -> int:
    """Print a page. Where a command has the same name, the page is printed: the other is the command's --help."""
    if args.schema:
        from vmpin.install import data_files
        return _schema(data_files.path("docs/schemas"), args.topic)
    topics = pages()
    if args.topic is None:
        _list(topics)
    elif args.topic in topics:
        print_markdown(topics[args.topic].read_text(encoding="utf-8"))
    elif args.topic in verb_modules():
        command_help = [args.topic, "--help"]
        verbs_parser(command_help).parse_args(command_help)
    else:
        raise UsageError(f"no command and no topic is called {args.topic!r}",
                         did_you_mean(args.topic, [*verb_modules(), *topics], "`vmpin help` lists the topics"))
    return 0


def _schema(directory: Path, name: str | None) -> int:
    """Print a schema as it is, or the names of all with their titles."""
    import json
    texts = {path.stem: path.read_text(encoding="utf-8") for path in directory.glob("*.json")}
    if name is None:
        for schema, text in sorted(texts.items()):
            print(f"{schema:18} {json.loads(text)['title']}")
    elif name in texts:
        print(texts[name], end="")
    else:
        raise UsageError(f"there is no schema {name!r}",
                         did_you_mean(name, texts, "`vmpin help --schema` lists them"))
    return 0


def pages() -> dict[str, Path]:
    """The topics."""
    from vmpin.install import data_files
    return {page.stem: page for page in sorted(data_files.path("docs").glob("*.md"))}


def _list(topics: dict[str, Path]) -> None:
    width = max(map(len, topics), default=0)
    print("topics:")
    for name, page in topics.items():
        with page.open(encoding="utf-8") as file:
            print(f"  {name:{width}} {file.readline().lstrip('# ').rstrip()}")
    print("commands: `vmpin --help` lists them; `vmpin COMMAND --help` describes a command")
