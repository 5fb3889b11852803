"""The API server, over the kubernetes package: pods listed and watched, and any other request as a value.

Only what is the same from the package's version 29 to the newest is used: its loaders of a configuration, its list
calls with `_preload_content=False`, and the connection pool that it makes of a configuration (versions before 36
cannot be made to send a server-side apply by a typed call). No typed models: raw JSON in and out. Every request has a
time limit on this side, as a server that is frozen keeps none of its own."""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from vmpin.bounded import parse_whole
from vmpin.domain.terminal import excerpt
from vmpin.errors import AnswerTooLong, ClusterError, ConfigError
from vmpin.features.cluster.kube.api_request import MAX_REFUSAL, ApiRequest, parse_answer, parse_page, refusal

logger = logging.getLogger(__name__)

#: Seconds to connect, to answer a request, and beyond a watch's own end.
CONNECT, ANSWER, OVER = 5.0, 10.0, 3.0
#: The longest line of a watch (bytes): an object has 1.5 MiB at most.
MAX_LINE = 8 << 20
#: The largest page of a list.
PAGE = 500
#: The longest answer that is read (bytes): a page of pods with 10 kB each has 5 MB.
MAX_ANSWER = 256 << 20
#: The longest pause that an answer may ask for (seconds); a longer one, or a date, counts for none.
MAX_RETRY_AFTER = 3600
#: A connection whose other end has vanished silently (a load balancer, a node without its network) is closed after a
#: minute: a watch may be silent for as long as it lasts.
KEEPALIVE = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
             (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
             (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)]


class ApiServer:
    """Used by several threads. A client is made at the first request, and again after an error of TLS or a token that
    is not accepted: its CA is read once, its token at most once a minute.
    :param kubeconfig: None for the service account of a pod; with `as_kubectl` for the files of KUBECONFIG, else
        ~/.kube/config, else that service account. `context` is one of it, "" for its current one.
    :raises ConfigError: at the first request, where the package is missing or there is no such configuration."""

    def __init__(self, kubeconfig: Path | None = None, context: str = "", as_kubectl: bool = False) -> None:
        self._kubeconfig, self._context, self._as_kubectl = kubeconfig, context, as_kubectl
        self._client: Any = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Make the client, and send nothing. :raises ConfigError: as above."""
        self._connected()

    def send(self, request: ApiRequest, most: int = MAX_ANSWER) -> Any:
        """The answer as JSON, {} for none. :param most: bytes of it. :raises AnswerTooLong: for more.
        :raises ClusterError: for any other than 2xx, and for none."""
        client, urllib3 = self._connected()
        body = None if request.body is None else json.dumps(request.body, separators=(",", ":")).encode()
        headers = {"Accept": "application/json", "User-Agent": client.user_agent,
                   **({"Content-Type": request.content_type} if body is not None else {}), **_authorization(client)}
        url = client.configuration.host + request.path + (f"?{urlencode(request.query)}" if request.query else "")
        with self._translated(str(request)):
            found = client.rest_client.pool_manager.request(
                request.method, url, body=body, headers=headers, retries=False, redirect=False,
                timeout=urllib3.Timeout(connect=CONNECT, read=ANSWER), preload_content=False)
            data = _limited(found, most)
            if data is not None:
                self._check(found, data)
                return parse_answer(data) if data else {}
        raise AnswerTooLong(f"{request}: the answer has more than {most >> 20} MiB")

    def get(self, path: str) -> Any:
        """Read an object, as `send` does."""
        return self.send(ApiRequest("GET", path))

    def pods(self, node: str, version: str = "") -> tuple[list[Mapping[str, Any]], str]:
        """The pods of a node, and the version of the list. :param node: "" for all nodes.
        :param version: "0" for what the server has at hand, "" for what is so now. :raises ClusterError: no list."""
        items: list[Mapping[str, Any]] = []
        token = ""
        while True:
            more = {"_continue": token} if token else {"resource_version": version} if version else {}
            with self._translated("list pods"), self._list(node, ANSWER, limit=PAGE, **more) as response:
                data = _limited(response, MAX_ANSWER)
                if data is None:
                    raise ClusterError(f"list pods: a page of {PAGE} has more than {MAX_ANSWER >> 20} MiB")
                page, token, listed = parse_page(data)
                items += page
                if not token:
                    return items, listed

    def watch_pods(self, node: str, version: str, seconds: int,
                   begun: Callable[[], None] = lambda: None) -> Iterator[Mapping[str, Any]]:
        """The events after a version, until the server ends the watch, `seconds` after its begin at the latest.
        :param begun: called when the server has accepted the watch.
        :raises ClusterError: it ends otherwise, or cannot begin."""
        with self._translated("watch pods"), self._list(
                node, seconds + OVER, watch=True, resource_version=version, allow_watch_bookmarks=True,
                timeout_seconds=seconds) as response:
            begun()
            buffer = b""
            for part in response.stream(65536, decode_content=True):
                *lines, buffer = (buffer + part).split(b"\n")
                if len(buffer) > MAX_LINE:
                    raise ClusterError("watch pods: a line without an end")
                yield from (parse_answer(line) for line in lines if line)

    def _list(self, node: str, read: float, **more: Any) -> Any:
        """The response of a list call, for a `with`. :param read: seconds for which the server may be silent."""
        client, _ = self._connected()
        from kubernetes.client import CoreV1Api

        selector = {"field_selector": f"spec.nodeName={node}"} if node else {}
        response = CoreV1Api(client).list_pod_for_all_namespaces(
            **selector, **more, _preload_content=False, _request_timeout=(CONNECT, read))
        self._check(response, None)
        return response

    def _connected(self) -> tuple[Any, Any]:
        """The client, and the module urllib3 that it uses."""
        try:
            import urllib3
            from kubernetes import client, config
        except ImportError as err:
            raise ConfigError(f"the Python package kubernetes is missing ({err})",
                              "install vmpin with its extra: pip install 'vmpin[kubernetes]'") from err
        with self._lock:
            if self._client is None:
                found = client.Configuration()
                try:
                    self._load(config, found)
                # Its parsers raise what YAML, base64 and the commands of a user raise.
                except Exception as err:
                    hint = ("give --kubeconfig FILE and --context NAME, or set KUBECONFIG, as for kubectl"
                            if self._as_kubectl else
                            "run it in a pod with a service account, or set kubernetes.kubeconfig")
                    raise ConfigError(f"no API server is configured: {err}", hint) from err
                found.retries = False  # each caller waits by itself
                self._client = client.ApiClient(found)
                self._client.user_agent = "vmpin" if self._as_kubectl else "vmpin-reporter"
                options = self._client.rest_client.pool_manager.connection_pool_kw
                options |= {"socket_options": KEEPALIVE, "ssl_context": _tls_context(urllib3, options)}
            return self._client, urllib3

    def _load(self, config: Any, found: Any) -> None:
        """Fill a client's configuration. :raises Exception: of many kinds."""
        files = str(self._kubeconfig or "")
        if self._as_kubectl and not files:
            files = os.environ.get("KUBECONFIG") or "~/.kube/config"
            there = any(os.path.exists(os.path.expanduser(each)) for each in files.split(os.pathsep))
            if not there and not self._context and "KUBERNETES_SERVICE_HOST" in os.environ:
                files = ""
        if files:
            config.load_kube_config(files, context=self._context or None, client_configuration=found,
                                    persist_config=False)
        else:
            config.load_incluster_config(client_configuration=found)

    def _renew(self) -> None:
        with self._lock:
            self._client = None

    def _check(self, response: Any, body: bytes | None) -> None:
        """Refuse an answer whose HTTP status is none of success. :raises ClusterError:"""
        if not 200 <= response.status < 300:
            raise self._error(response.status, response.headers,
                              _limited(response, MAX_REFUSAL) if body is None else body)

    def _error(self, status: int, headers: Mapping[str, str] | None, body: Any) -> ClusterError:
        if status == 401:
            self._renew()
        message = refusal(body)
        if status == 422 and "metadata.uid: " in message:
            status = 409  # what a patch with a uid gets where another object has the name
        after = parse_whole((headers or {}).get("Retry-After", ""), MAX_RETRY_AFTER) or 0
        return ClusterError(excerpt(message, 300) or f"HTTP status {status}", status, float(after))

    def _translated(self, what: str) -> _Translated:
        return _Translated(self, what)


class _Translated:
    """Turns what the packages raise into ClusterError."""

    def __init__(self, server: ApiServer, what: str) -> None:
        self._server, self._what = server, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, err: BaseException | None, _: object) -> None:
        import urllib3
        from kubernetes.client.exceptions import ApiException

        server, what = self._server, self._what
        if isinstance(err, ClusterError):
            raise ClusterError(f"{what}: {err}" if what not in str(err) else str(err), err.status, err.after) from err
        if isinstance(err, ApiException) and err.status:
            found = server._error(err.status, err.headers, err.body)
            raise ClusterError(f"{what}: {found}", found.status, found.after) from err
        if isinstance(err, urllib3.exceptions.SSLError | ApiException):
            server._renew()
            raise ClusterError(f"{what}: TLS: {err}") from err
        if isinstance(err, urllib3.exceptions.HTTPError | OSError):
            raise ClusterError(f"{what}: {err}") from err
        if isinstance(err, ValueError | KeyError):
            raise ClusterError(f"{what}: the answer is not the JSON that it should be") from err


def _tls_context(urllib3: Any, options: Mapping[str, Any]) -> ssl.SSLContext:
    """The context of every connection to an API server. It verifies as urllib3's own, but takes authorities without
    the extensions that RFC 5280 asks for (keyUsage, authorityKeyIdentifier), as Go's programs do: clusters have such
    ones, and Python 3.13 refuses them by VERIFY_X509_STRICT. :param options: of urllib3's pools."""
    context: ssl.SSLContext = urllib3.util.ssl_.create_urllib3_context(cert_reqs=options.get("cert_reqs"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not options.get("ca_certs"):
        context.load_default_certs()  # urllib3 does so only for a context that it makes itself
    return context


def _limited(response: Any, most: int) -> bytes | None:
    """Read a response's body; None for a longer one, of which the rest is not read."""
    data = bytearray()
    for part in response.stream(1 << 18, decode_content=True):
        data += part
        if len(data) > most:
            response.close()
            return None
    return bytes(data)


def _authorization(client: Any) -> dict[str, str]:
    return {each["key"]: each["value"] for each in client.configuration.auth_settings().values()
            if each["in"] == "header" and each["value"]}


#: What has to be reached: the node's own object, and the list and watch of its pods.
PARTS = ("node", "pods")


class ApiLink:
    """Whether the reporter reaches the API server: a file that exists while it does, for the readiness probe (a pod
    without a port has no other one but a command, and starting Python for each is expensive), and the reason while it
    does not. Called by the threads that make requests.
    :param ready: the file, None for none; one of an earlier process is removed.
    :param changed: called after each change of `trouble`."""

    def __init__(self, ready: Path | None, changed: Callable[[], None]) -> None:
        self._ready, self._changed = ready, changed
        self._lock = threading.Lock()
        #: Why a part is not reached, "" where it is, None where it was not asked for yet.
        self._troubles: dict[str, str | None] = dict.fromkeys(PARTS)
        self._show(False)

    @property
    def trouble(self) -> str:
        """Why the API server is not reached; "" where it is, or was not asked yet."""
        return next((text for text in self._troubles.values() if text), "")

    def reached(self, part: str) -> None:
        """A request succeeded. :param part: of PARTS."""
        self._set(part, "")

    def failed(self, part: str, why: str) -> None:
        """A request failed, and is tried again later."""
        self._set(part, why)

    def _set(self, part: str, why: str) -> None:
        with self._lock:
            before, was_reached = self.trouble, self._reached()
            self._troubles[part] = why
            after, reached = self.trouble, self._reached()
            if was_reached != reached:
                self._show(reached)
        if before != after:
            self._changed()

    def _reached(self) -> bool:
        return not any(text is None or text for text in self._troubles.values())

    def _show(self, reached: bool) -> None:
        if self._ready is None:
            return
        try:
            if reached:
                self._ready.touch()
            else:
                self._ready.unlink(missing_ok=True)
        except OSError as err:
            logger.warning("kubernetes.ready_file: %s", err)
