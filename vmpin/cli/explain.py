"""`vmpin status --explain`: why each thread of a sandbox has its CPUs."""

import argparse
from collections.abc import Mapping
from datetime import datetime

from vmpin.cli.control_client import Document, entry_of, named_sandboxes, status_document
from vmpin.cli.output import VERSION, print_data, print_text
from vmpin.config.settings import Config
from vmpin.domain.pod_names import names_of, with_names
from vmpin.domain.terminal import short_id, with_ages
from vmpin.errors import UsageError
from vmpin.feature import explained_pods, inspect_vms
from vmpin.status.pod_arguments import PodMatch, joined, only_match


def explain(config: Config, args: argparse.Namespace) -> int:
    """Print the sentences on the sandbox or container that the arguments of `vmpin status` name.
    :raises UsageError: where they name none, or have an option that does not go with --explain."""
    if args.sandbox is None:
        raise UsageError("--explain is about one pod or container, and no SANDBOX is given",
                         "`vmpin status SANDBOX --explain`; `vmpin status --problems` lists what is not in order")
    if args.output in ("wide", "name") or args.problems or args.no_headers or args.inspect:
        raise UsageError("--explain prints sentences: with it go only -n, --direct, --watch, -o json and -o yaml",
                         "`vmpin status SANDBOX --explain`")
    document = status_document(config, direct=args.direct)
    sandboxes = named_sandboxes(document)
    vms = {sandbox.id: [id for id, _ in sandbox.containers] for sandbox in sandboxes}
    explained = [] if args.direct else explained_pods(config)
    noun = "pod of a VM, or with CPUs that vmpin gave it," if explained else "VM sandbox"
    pods = [pod for of_feature in explained for pod in of_feature.pods]
    match = only_match(args.sandbox, args.namespace, joined(sandboxes, pods), noun)
    id, name = match.sandbox.id, match.sandbox.title
    sentences = _of_sandbox(config, document, match) if id in vms and match.container in ("", *vms[id]) else []
    for of_feature in explained:
        ids = {pod.id for pod in of_feature.pods} & {id, name}
        if ids:
            sentences += of_feature.sentences(match.container or (id if id in ids else name))
    if args.output in ("json", "yaml"):
        print_data({"version": VERSION, "sandbox": match.sandbox.id, "sentences": sentences}, args.output)
        return 0
    names, now = names_of(document), datetime.fromisoformat(document["time"])
    for sentence in sentences:
        print_text(_named(with_ages(sentence, now), match.sandbox.id, names))
    return 0


def _named(sentence: str, sandbox: str, names: Mapping[str, str]) -> str:
    """Replace ids by names, but for the id of the sandbox itself where the sentence begins with it."""
    begin = f"Sandbox {sandbox}"
    own = f"Sandbox {short_id(sandbox)}" if sentence.startswith(begin) else ""
    return own + with_names(sentence.removeprefix(begin) if own else sentence, names)


def _of_sandbox(config: Config, document: Document, match: PodMatch) -> list[str]:
    from vmpin.status.explain import container_sentences, sentences
    entry = entry_of(document, match)
    if match.container:
        return container_sentences(document, entry, match.container)
    inspect_vms(config, [entry])
    return sentences(document, entry)
