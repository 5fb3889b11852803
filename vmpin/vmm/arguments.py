"""A VMM's or helper's command line: options with one dash or two, lists of `key=value`, and what Kata writes in them.

Pure. The syntax is QEMU's (util/keyval.c, util/qemu-option.c): `,,` is a comma in a value. A process can
write any command line: what cannot be parsed is left out, never guessed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from vmpin.bounded import load_json, parse_whole
from vmpin.domain.model import SandboxId, valid_id

# Anywhere in an argument: Kata writes paths bare, after `path=` and in comma lists, and a rootless Kata puts
# $XDG_RUNTIME_DIR in front. The Go runtime's directory of a Firecracker has its program's name (fc.go: setPaths).
# Kuasar's sandboxer has a directory of its own (vmm/sandbox/src/args.rs).
_RUN_DIRECTORY = r"/run/(?:vc/(?:vm|sbs|firecracker[^/,=]*)|kata|kuasar-vmm)/([^/,=]+)/"
_SHARED_DIRECTORY = r"/sandboxes/([^/,=]+)(?:[/,]|$)"
#: include/uapi/linux/vm_sockets.h: 0 to 2 are the hypervisor, this machine and the host; the last one is "any".
_FIRST_GUEST_CID, _ANY_CID = 3, 0xFFFFFFFF
#: The values of a boolean option that QEMU takes as true.
ON = frozenset(("on", "yes", "true", "y"))


def option_values(argv: Sequence[str], *names: str) -> list[str]:
    """Return the values after `-name` or `--name`, in order."""
    wanted = {dashes + name for name in names for dashes in ("-", "--")}
    return [value for arg, value in pairwise(argv) if arg in wanted]


def long_options(argv: Sequence[str], *names: str) -> Iterator[tuple[str, str]]:
    """Yield the options of these names with their values, written `--name=value` or `--name value`."""
    for at, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name in names:
            yield name, value if equals else "".join(argv[at + 1:at + 2])


def go_flag(argv: Sequence[str], name: str) -> str:
    """The last value of a flag, with one dash or two, after `=` or as the next argument; "" without one."""
    return "".join([value for _, value in long_options(argv, f"-{name}", f"--{name}")][-1:])


def keyvals(text: str, implied: str) -> list[tuple[str, str]]:
    """`a,k=v,flag` as pairs: a first item without `=` is the value of `implied`, a later one means `on`."""
    pairs = []
    for at, part in enumerate(_split(text)):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = (implied, part) if at == 0 else (part, "on")
        pairs.append((key, value))
    return pairs


def option_pairs(value: str, implied: str) -> list[tuple[str, str]]:
    """Parse an option's value, written as `keyvals` or as JSON, to (key, value) pairs; [] if it is neither. A list in
    JSON gives several pairs with the same key."""
    if not value.startswith("{"):
        return keyvals(value, implied)
    try:
        options = load_json(value)
    except ValueError:
        return []
    return [(key, str(item)) for key, items in options.items()
            for item in (items if isinstance(items, list) else [items])]


def options_of(value: str, implied: str) -> dict[str, str]:
    """Parse an option's value as `option_pairs` does, to a dict."""
    return dict(option_pairs(value, implied))


def chardev_sockets(argv: Sequence[str]) -> dict[str, dict[str, str]]:
    """The properties of character devices that are Unix sockets, by id; abstract sockets are left out."""
    devices = (dict(keyvals(value, "backend")) for value in option_values(argv, "chardev"))
    return {device["id"]: device for device in devices
            if device.get("backend") == "socket" and "id" in device and device.get("abstract") not in ON}


def _split(text: str) -> list[str]:
    """Split at single commas; doubled ones become one comma of the value."""
    if ",," not in text:
        return text.split(",") if text else []
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]  # an argument has no NUL


def sandbox_id(text: str) -> SandboxId | None:
    """Convert a text to a sandbox id; None if it is not a valid id."""
    return SandboxId(text) if valid_id(text) else None


def run_directory_sandbox(argv: Iterable[str]) -> SandboxId | None:
    """The sandbox of the first argument with a path below Kata's run directory; None if there is none."""
    return _by_pattern(argv, _RUN_DIRECTORY)


def run_directory_with(option: str) -> Callable[[Sequence[str]], SandboxId | None]:
    """`run_directory_sandbox` for command lines that have this option; None for others."""
    return lambda argv: run_directory_sandbox(argv) if any(long_options(argv, option)) else None


def served_sandbox(argv: Sequence[str]) -> SandboxId | None:
    """The sandbox whose shared directory, or else whose runtime's directory, is in the arguments."""
    return _by_pattern(argv, _SHARED_DIRECTORY) or _by_pattern(argv, _RUN_DIRECTORY)


def _by_pattern(argv: Iterable[str], pattern: str) -> SandboxId | None:
    for arg in argv:
        for match in re.finditer(pattern, arg):
            if sandbox := sandbox_id(match[1]):
                return sandbox
    return None


def vsock_cid(text: str) -> int | None:
    """Convert a text to a guest's vsock CID; None if it is not a valid one."""
    return parse_whole(text, _ANY_CID - 1, _FIRST_GUEST_CID)


def socket_path(argv: Sequence[str], option: str) -> str | None:
    """The socket path in an option, bare or as `path=`; None if the option has a descriptor or is missing."""
    for _, value in long_options(argv, option):
        path = value.removeprefix("path=")
        return path if path and "\0" not in path and not path.startswith("fd=") else None
    return None
