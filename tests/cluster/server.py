"""An API server in a directory of its own, as tests start, break and ask it.

    with ApiServer(programs) as server:
        token = server.service_account("vmpin", "reporter", node="node-a")
        server.create("/api/v1/namespaces/default/pods", POD)
        assert server.get("/api/v1/namespaces/default/pods/p", token=token).code == 403
        server.kubectl("get", "pods")

It listens on 127.0.0.1, at a port that it keeps over restarts.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from cluster import audit_log
from cluster.build import Programs

#: Seconds that anything may take on a busy machine.
DEADLINE = 180.0
_NODE_CLAIM = "authentication.kubernetes.io/node-name"
JSON, MERGE, STRATEGIC, APPLY = (f"application/{kind}" for kind in (
    "json-patch+json", "merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml"))


@dataclass(frozen=True)
class Reply:
    code: int
    body: Any
    headers: Mapping[str, str]


class Watch:
    """The events of a watch, as JSON has them."""

    def __init__(self, connection: http.client.HTTPSConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response

    def next(self) -> dict[str, Any] | None:
        """The next event, or None at the end. :raises TimeoutError: when none comes."""
        line = self._response.readline()
        if not line:
            return None
        event = json.loads(line)
        assert isinstance(event, dict)
        return event

    def until(self, kind: str) -> dict[str, Any]:
        """The next event of a type, as ADDED, BOOKMARK or ERROR."""
        while (event := self.next()) is not None:
            if event["type"] == kind:
                return event
        raise AssertionError(f"the watch ended without {kind}")

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class ApiServer:
    """A process of its own, ended by SIGKILL: at SIGTERM it would wait for open watches.

    It ends with the thread that started it (prctl(2), PR_SET_PDEATHSIG): that should be the test's main one.

    :param watch_cache: without it a watch from before a compaction gets 410 at once, as one gets from a cluster whose
        cache has moved on; but no bookmarks.
    :param authority: writes tls.crt and tls.key into a directory. None: the server makes an authority of its own.
    """

    def __init__(self, programs: Programs, watch_cache: bool = True,
                 authority: Callable[[Path], None] | None = None) -> None:
        self._programs = programs
        self._watch_cache = watch_cache
        self._authority = authority
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            # Not pytest's or TMPDIR's, whose path may be too long for a socket's name.
            self.directory = Path(stack.enter_context(TemporaryDirectory(prefix="vmpin-api-", dir="/tmp")))
            # Bound but not listening: nothing else gets the port while the server is away, and clients are refused.
            reserved = stack.enter_context(socket.socket())
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind(("127.0.0.1", 0))
            self.port: int = reserved.getsockname()[1]
            self._tokens: dict[str, dict[str, Any]] = {}
            self.admin = self.user("admin", groups=["system:masters"])
            self._write("audit.json", audit_log.POLICY)
            if self._authority is not None:
                self._authority(self.directory)
            stack.callback(self.kill)
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 at: TracebackType | None) -> None:
        self._stack.close()

    # Its process.

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """What its certificate is checked against."""
        return self.directory / "tls.crt"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        argv = [str(self._programs.apiserver), "--state", str(self.directory), "--port", str(self.port),
                f"--watch-cache={str(self._watch_cache).lower()}"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *argv], stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log)
        end = time.monotonic() + DEADLINE
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the API server is not ready:\n{self.log()[-3000:]}")
            time.sleep(0.05)

    def _ready(self) -> bool:
        try:
            return self.request("GET", "/readyz").code == 200
        except (OSError, http.client.HTTPException):
            return False

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def served(self) -> list[audit_log.Served]:
        """Every request so far, from its first start on, by the time of its answer; a watch by that of its begin."""
        return audit_log.read(self.directory / "audit.log")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, new_ca: bool = False) -> None:
        """Kill it and start it again with what it has stored. :param new_ca: with another authority."""
        self.kill()
        if new_ca:
            for name in ("tls.crt", "tls.key"):
                (self.directory / name).unlink()
        self.start()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def compact(self) -> int:
        """Have it forget the past: its present revision."""
        reply = self.request("POST", "/compact")
        assert reply.code == 200, reply
        return int(reply.body)

    def faults(self, *faults: Mapping[str, object]) -> None:
        """Answer some requests otherwise from now on; without an argument none.

        :param faults: code, and if given reason, retryAfter (seconds), users, verbs, resources (as pods/status): see
            apiserver/faults.go.
        """
        self._write("faults.json", list(faults))

    # Its tokens.

    def user(self, name: str, groups: Sequence[str] = (), uid: str = "",
             extra: Mapping[str, Sequence[str]] | None = None) -> str:
        """A new token. :param uid: the name where none is given."""
        token = secrets.token_urlsafe()
        self._tokens[token] = {"name": name, "uid": uid or name, "groups": list(groups),
                               "extra": {key: list(values) for key, values in (extra or {}).items()}}
        self._write("tokens.json", self._tokens)
        return token

    def service_account(self, namespace: str, name: str, node: str | None = None) -> str:
        """A new token as a pod gets it. :param node: the pod's, which a bound token carries (KEP-4193)."""
        return self.user(f"system:serviceaccount:{namespace}:{name}",
                         ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"],
                         extra={} if node is None else {_NODE_CLAIM: [node]})

    def expire(self, token: str) -> None:
        """Let a token have been valid until now."""
        self._tokens[token]["expires"] = datetime.datetime.now(datetime.UTC).isoformat()
        self._write("tokens.json", self._tokens)

    def revoke(self, token: str) -> None:
        del self._tokens[token]
        self._write("tokens.json", self._tokens)

    def _write(self, name: str, content: object) -> None:
        new = self.directory / f"{name}.new"
        new.write_text(json.dumps(content))
        new.rename(self.directory / name)  # it may be read at any moment

    # Asking it.

    def request(self, method: str, path: str, body: object = None, *, token: str | None = None,
                kind: str = "application/json", query: Mapping[str, object] | None = None,
                timeout: float = DEADLINE) -> Reply:
        """:param token: the administrator's where none is given. :param kind: the body's media type.

        :raises OSError: when there is no answer within `timeout` seconds, or no server.
        """
        connection, response = self._open(method, path, body, token, kind, timeout, query or {})
        with contextlib.closing(connection):
            text = response.read().decode()
        with contextlib.suppress(ValueError):
            text = json.loads(text)
        return Reply(response.status, text, dict(response.headers))

    def _open(self, method: str, path: str, body: object, token: str | None, kind: str, timeout: float,
              query: Mapping[str, object]) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        context = ssl.create_default_context(cafile=self.ca)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=context)
        asked = f"{path}?{urlencode(query)}" if query else path
        try:
            connection.request(method, asked, None if body is None else json.dumps(body), {
                "Authorization": f"Bearer {token or self.admin}", "Content-Type": kind, "Accept": "application/json"})
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def get(self, path: str, *, token: str | None = None, **query: object) -> Reply:
        return self.request("GET", path, token=token, query=query)

    def create(self, path: str, content: object, *, token: str | None = None) -> Reply:
        return self.request("POST", path, content, token=token)

    def apply(self, path: str, content: object, *, manager: str, token: str | None = None,
              force: bool = False) -> Reply:
        """Server-side apply."""
        return self.request("PATCH", path, content, token=token, kind=APPLY,
                            query={"fieldManager": manager, "force": str(force).lower()})

    @contextlib.contextmanager
    def watch(self, path: str, *, token: str | None = None, **query: object) -> Iterator[Watch]:
        connection, response = self._open("GET", path, None, token, "application/json", DEADLINE,
                                          {"watch": "true", "allowWatchBookmarks": "true"} | query)
        watch = Watch(connection, response)
        try:
            yield watch
        finally:
            watch.close()

    def kubeconfig(self, token: str | None = None) -> Path:
        """A file for kubectl and for clients. :param token: the administrator's where none is given."""
        given = token or self.admin
        path = self.directory / f"kubeconfig-{given[:12]}"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "test", "user": {"token": given}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]}))
        path.chmod(0o600)
        return path

    def kubectl(self, *arguments: str | Path, token: str | None = None, stdin: str | None = None,
                ) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.directory),
                       "KUBECONFIG": str(self.kubeconfig(token))}
        return subprocess.run([self._programs.kubectl, *arguments], input=stdin, capture_output=True, text=True,
                              env=environment, timeout=DEADLINE, check=False)
