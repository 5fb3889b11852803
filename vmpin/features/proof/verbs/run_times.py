"""Where threads ran in a period, for `vmpin verify --since`."""

from vmpin.bounded import parse_real
from vmpin.cli.control_client import Document, ask
from vmpin.cli.output import print_text, table
from vmpin.cli.status import counts
from vmpin.config.settings import Config
from vmpin.domain.terminal import pod_name, short_id
from vmpin.errors import UsageError, WatcherError
from vmpin.feature import Comparison

COLUMNS = ("ROLE", "RAN IN PLACE", "CERTAIN", "ELSEWHERE", "WAITED", "MIGRATIONS")


def percent(text: str) -> float:
    """A number from 0 to 100. :raises UsageError: for any other text."""
    if (number := parse_real(text, 100)) is not None:
        return number
    raise UsageError(f"--tolerate {text}: is not a percentage", "e.g. --tolerate 0.1")


def proof(config: Config, sandbox: str | None, since: int, namespace: str = "") -> Document:
    """The run times since then, from the watcher, with their total. :param namespace: only of its pods, "" for all.
    :raises WatcherError: if it does not answer."""
    document = ask(config, {"op": "proof", "since": since, "sandbox": sandbox})
    if document is None:
        raise WatcherError("no watcher runs, and only a watcher records where threads ran",
                           "start `vmpin watch`; without --since the current masks are checked")
    if namespace:
        of_pods = [account for account in document["sandboxes"]
                   if account["pod"] and account["pod"]["namespace"] == namespace]
        ids = {account["id"] for account in of_pods}
        document |= {"sandboxes": of_pods, "ended": None, "findings": [
            finding for finding in document["findings"] if finding["sandbox"] in ids]}
    return document | {"total": total(document)}


def compared(config: Config, sandbox: str | None, since: int, namespace: str, tolerated: float) -> Comparison:
    """The run times of the last `since` seconds. :param tolerated: percent that may have been elsewhere."""
    document = proof(config, sandbox, since, namespace)
    return Comparison(good=elsewhere(document) <= tolerated, members={"proof": document},
                      show=lambda: print_proof(document), alone=True)


def total(document: Document) -> Document:
    """The sum over all roles of all sandboxes, including those that ended."""
    sums = dict.fromkeys(("placed", "certain", "elsewhere", "free", "waited", "migrations", "unseen"), 0.0)
    for account in filter(None, [*document["sandboxes"], document["ended"]]):
        sums["unseen"] += account["unseen"]
        for role in account["roles"].values():
            for key, value in role.items():
                sums[key] += value
    return {key: round(value, 6) for key, value in sums.items()}


def elsewhere(document: Document) -> float:
    """Percent of the run time with a placement that was elsewhere."""
    sums = document["total"]
    ran = sums["placed"] + sums["elsewhere"]
    return 100 * float(sums["elsewhere"]) / ran if ran else 0.0


def print_proof(document: Document) -> None:
    titles = {sandbox["id"]: pod_name(sandbox["pod"], short_id(sandbox["id"])) for sandbox in document["sandboxes"]}
    rows = [[titles[sandbox["id"]], role, *row(account)] for sandbox in document["sandboxes"]
            for role, account in sandbox["roles"].items()]
    if document["ended"]:
        rows += [["(ended)", role, *row(account)] for role, account in document["ended"]["roles"].items()
                 if any(account.values())]
    if rows:
        table(["POD", *COLUMNS], rows, keys=("POD", "ROLE"))
    missed = document["seconds"] - document["watched"]
    gap = f", of which {missed:.0f} s were not watched" if missed > 1 else ""
    print_text(f"since {document['since']} ({document['seconds']:.0f} s{gap})")
    if document["drift"]:
        print_text(f"threads put back: {counts(document['drift'])}")
    for finding in document["findings"]:
        role = finding["role"] if finding["vcpu"] is None else f"{finding['role']} {finding['vcpu']}"
        title = titles.get(finding["sandbox"], short_id(finding["sandbox"]))
        print_text(f"ELSEWHERE {title}: {role} (thread {finding['tid']}) ran {finding['seconds']:.3f} s on CPU "
                   f"{finding['cpu']}, its place is {finding['place']}; last seen {finding['last']}")
    sums = document["total"]
    ran = sums["placed"] + sums["elsewhere"]
    print_text(f"in their place {part(sums['placed'], ran)}, elsewhere {part(sums['elsewhere'], ran)}; certain "
               f"{part(sums['certain'], ran)}; unseen between two samples {sums['unseen']:.3f} s")


def row(account: Document) -> list[str]:
    """An account in the order of COLUMNS, from the second on."""
    ran = account["placed"] + account["elsewhere"] + account["free"]
    return [part(account["placed"], ran), part(account["certain"], ran), part(account["elsewhere"], ran),
            f"{account['waited']:.3f} s", str(int(account["migrations"]))]


def part(seconds: float, of: float) -> str:
    """Seconds and their share of others, never rounded up to 100 % nor down to 0 %."""
    if not seconds or not of:
        return f"{seconds:.3f} s"
    text = f"{100 * seconds / of:.2f}"
    if text == "100.00" and seconds < of:
        text = "99.99"
    return f"{seconds:.3f} s ({'<0.01' if text == '0.00' else text} %)"
