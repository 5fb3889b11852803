"""A certificate authority as older tools made them, and a server's certificate of it: without the extensions that
RFC 5280 asks for, and Python 3.13 by default: keyUsage of the authority, and authorityKeyIdentifier.

Go's programs (the kubelet, kubectl, helm) accept it."""

from __future__ import annotations

import subprocess
from pathlib import Path

_AUTHORITY = """\
[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = an authority without keyUsage
[authority]
basicConstraints = critical, CA:TRUE
"""
_SERVER = """\
basicConstraints = CA:FALSE
subjectAltName = {name}
subjectKeyIdentifier = none
authorityKeyIdentifier = none
"""
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def write_authority(directory: Path, name: str = "IP:127.0.0.1") -> None:
    """Write tls.crt (the server's certificate, then the authority's) and tls.key. :param name: of the server."""
    work = directory / "authority"
    work.mkdir(exist_ok=True)
    (work / "authority.conf").write_text(_AUTHORITY)
    (work / "server.conf").write_text(_SERVER.format(name=name))
    _openssl(work, "req", "-x509", *_KEY, "-config", "authority.conf", "-days", "2", "-keyout", "authority.key",
             "-out", "authority.crt")
    _openssl(work, "req", *_KEY, "-config", "authority.conf", "-subj", "/CN=server", "-keyout", "server.key",
             "-out", "server.csr")
    _openssl(work, "x509", "-req", "-in", "server.csr", "-CA", "authority.crt", "-CAkey", "authority.key",
             "-CAcreateserial", "-days", "2", "-extfile", "server.conf", "-out", "server.crt")
    (directory / "tls.crt").write_text((work / "server.crt").read_text() + (work / "authority.crt").read_text())
    (directory / "tls.key").write_text((work / "server.key").read_text())


def _openssl(directory: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
