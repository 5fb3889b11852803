"""Packs the guest's agent into one file that any Python from 3.9 on runs: a zip archive with a first line.

The same sources give the same bytes (with the same zlib)."""

import io
import zipapp
import zipfile
from pathlib import Path

import vmpin
from vmpin.install import data_files

INTERPRETER = "/usr/bin/python3 -IS"

#: The modules in it: those of vmpin that the agent shares with the host, and the agent's own.
SHARED = ("__init__", "bounded", "cpuset", "named_tuple", "protocol/__init__", "protocol/frames",
          "protocol/messages", "protocol/parsing")
AGENT = ("__init__", "__main__", "agent", "cpusets", "file_io", "guest_cgroups", "guest_cpus", "guest_threads", "link",
         "map_applier", "originals", "server", "thread_masks")
NAMES = ("__main__.py", *(f"vmpin/{name}.py" for name in SHARED), *(f"vmpin_agent/{name}.py" for name in AGENT))

_MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.exit("vmpin-agent needs Python 3.9 or newer, and this is " + sys.version.split()[0])

from vmpin_agent.__main__ import main

sys.exit(main())
"""


def packed() -> bytes:
    """The file's bytes. :raises VmpinError: when this installation lacks the agent's sources."""
    sources = {"vmpin": Path(vmpin.__path__[0]), "vmpin_agent": data_files.path("guest/vmpin_agent")}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        for name in NAMES:
            package, _, module = name.partition("/")
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(info, (sources[package] / module).read_bytes() if module else _MAIN.encode())
    archive.seek(0)
    out = io.BytesIO()
    zipapp.create_archive(archive, out, INTERPRETER)
    return out.getvalue()


def build(path: Path) -> int:
    """Write the file, whole or not at all. :returns: its size in bytes. :raises OSError: then it is as it was."""
    data = packed()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.chmod(0o755)
    part.replace(path)
    return len(data)
