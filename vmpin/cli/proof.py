"""Where the threads ran since a time: `vmpin verify --since`, and the words that status has for it, too."""

from __future__ import annotations

import re

from vmpin.cli.common import Document, ask, short, shown, table
from vmpin.config.settings import Config
from vmpin.errors import UsageError, WatcherError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
#: What is proved is kept that long (proof).
_LONGEST = 7 * 86400

COLUMNS = ("ROLE", "RAN IN PLACE", "CERTAIN", "ELSEWHERE", "WAITED", "MIGRATIONS")


def duration(text: str) -> int:
    """Seconds, of `90s`, `30m`, `24h` or `7d`. :raises UsageError:"""
    match = _DURATION.fullmatch(text)
    found = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < found <= _LONGEST:
        raise UsageError(f"--since {text}: is no duration of at most seven days", "e.g. --since 90s, 30m, 24h or 7d")
    return found


def percent(text: str) -> float:
    """:raises UsageError:"""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 100:
        raise UsageError(f"--tolerate {text}: is no percentage", "e.g. --tolerate 0.1")
    return found


def proof(config: Config, sandbox: str | None, since: int) -> Document:
    """What the watcher knows. :raises WatcherError: when it cannot be asked."""
    found = ask(config, {"op": "proof", "since": since, "sandbox": sandbox})
    if found is None:
        raise WatcherError("no watcher runs, and only it knows where threads ran before",
                           "start `vmpin watch`; without --since they are looked at now")
    return found


def total(found: Document) -> Document:
    """All roles of all sandboxes, those that ended too."""
    made = dict.fromkeys(("placed", "certain", "elsewhere", "free", "waited", "migrations", "unseen"), 0.0)
    for account in [*found["sandboxes"], *([found["ended"]] if found["ended"] else [])]:
        made["unseen"] += account["unseen"]
        for role in account["roles"].values():
            for key, value in role.items():
                made[key] += value
    return {key: round(value, 6) for key, value in made.items()}


def elsewhere(found: Document) -> float:
    """Percent of what ran with a place to be."""
    sums = total(found)
    ran = sums["placed"] + sums["elsewhere"]
    return 100 * float(sums["elsewhere"]) / ran if ran else 0.0


def print_proof(found: Document) -> None:
    rows = []
    for sandbox in found["sandboxes"]:
        pod = f"{sandbox['pod']['namespace']}/{sandbox['pod']['name']}" if sandbox["pod"] else "-"
        rows += [[short(sandbox["id"]), pod, role, *row(account)] for role, account in sandbox["roles"].items()]
    if found["ended"]:
        rows += [["(ended)", "-", role, *row(account)] for role, account in found["ended"]["roles"].items()
                 if any(account.values())]
    if rows:
        table(["SANDBOX", "POD", *COLUMNS], rows)
    missed = found["seconds"] - found["watched"]
    gap = f", of which {missed:.0f} s were not watched" if missed > 1 else ""
    print(f"since {found['since']} ({found['seconds']:.0f} s{gap})")
    if found["drift"]:
        print(f"threads put back: {shown(counts(found['drift']))}")
    for each in found["findings"]:
        role = each["role"] if each["vcpu"] is None else f"{each['role']} {each['vcpu']}"
        print(f"ELSEWHERE {shown(short(each['sandbox']))}: {role} (thread {each['tid']}) ran {each['seconds']:.3f} s "
              f"on CPU {each['cpu']}, its place is {each['place']}; last seen {each['last']}")
    sums = total(found)
    ran = sums["placed"] + sums["elsewhere"]
    print(f"in their place {part(sums['placed'], ran)}, elsewhere {part(sums['elsewhere'], ran)}; certain "
          f"{part(sums['certain'], ran)}; between two samples, and so not seen, {sums['unseen']:.3f} s")


def row(account: Document) -> list[str]:
    """An account as COLUMNS has it, from the second on."""
    ran = account["placed"] + account["elsewhere"] + account["free"]
    return [part(account["placed"], ran), part(account["certain"], ran), part(account["elsewhere"], ran),
            f"{account['waited']:.3f} s", str(int(account["migrations"]))]


def part(seconds: float, of: float) -> str:
    """Seconds, and what part of others they are: not rounded up to all, nor down to nothing."""
    if not seconds or not of:
        return f"{seconds:.3f} s"
    text = f"{100 * seconds / of:.2f}"
    if text == "100.00" and seconds < of:
        text = "99.99"
    return f"{seconds:.3f} s ({'<0.01' if text == '0.00' else text} %)"


def counts(found: Document) -> str:
    """`3 by tuned, 1 by other`"""
    return ", ".join(f"{count} by {cause}" for cause, count in found.items())
