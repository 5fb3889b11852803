"""The API server, over the kubernetes package: requests as values, and the watch of a node's pods.

Only what is the same from the package's version 29 to the newest is used: its loaders of a configuration, and the
connection pool that it makes of one (versions before 36 cannot be made to send a server-side apply by a typed call).
Raw JSON in and out. Every request has a time limit on this side, as a server that is frozen keeps none of its own."""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from vmpin.bounded import parse_whole
from vmpin.domain.terminal import excerpt
from vmpin.errors import ConfigError
from vmpin.features.cluster.cluster_errors import AnswerTooLong, ClusterError
from vmpin.features.cluster.kube.api_request import MAX_REFUSAL, ApiRequest, parse_answer, parse_page, refusal

logger = logging.getLogger(__name__)

#: Seconds to connect, to answer a request, and beyond a watch's own end.
CONNECT, ANSWER, OVER = 5.0, 10.0, 3.0
#: The longest line of a watch (bytes): an object has 1.5 MiB at most.
MAX_LINE = 8 << 20
#: The largest page of a list of pods, and the most pages of one node's: no node has a tenth of that.
PAGE, MAX_PAGES = 500, 20
_PODS = "/api/v1/pods"
#: The longest answer that is read (bytes): a page of pods with 10 kB each has 5 MB.
MAX_ANSWER = 256 << 20
#: The longest pause that an answer may ask for (seconds); a longer one, or a date, is ignored.
MAX_RETRY_AFTER = 3600
#: The parts of ApiLink: the node's own object, and the list and watch of its pods.
PARTS = ("node", "pods")
#: A connection whose other end has vanished silently (a load balancer, a node without its network) is closed after a
#: minute: a watch may be silent for as long as it lasts.
KEEPALIVE = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
             (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
             (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)]


class ApiServer:
    """Used by several threads. A client is created at the first request, and again after a TLS error or a refused
    token: it reads its CA once, its token at most once a minute.
    :param kubeconfig: None for the service account of a pod; with `as_kubectl` for the files of KUBECONFIG, else
        ~/.kube/config, else that service account. `context` is one of it, "" for its current one.
    :raises ConfigError: at the first request, where the package is missing or there is no such configuration. Where
        there has been one it is a ClusterError: files of tokens and kubeconfigs are replaced."""

    def __init__(self, kubeconfig: Path | None = None, context: str = "", as_kubectl: bool = False) -> None:
        self._kubeconfig, self._context, self._as_kubectl = kubeconfig, context, as_kubectl
        self._client: Any = None
        self._configured = False  #: Whether there has been a client.
        self._lock = threading.Lock()

    def check(self) -> None:
        """Create the client, and send nothing. :raises ConfigError: as above."""
        self._connected()

    def send(self, request: ApiRequest, most: int = MAX_ANSWER) -> Any:
        """Return the answer as JSON, {} for an empty one. :param most: bytes of it. :raises AnswerTooLong: for more.
        :raises ClusterError: an HTTP status other than 2xx, or no answer."""
        with self._translated(str(request)), self._response(request, ANSWER) as response:
            data = _limited(response, most)
            if data is not None:
                return parse_answer(data) if data else {}
        raise AnswerTooLong(f"{request}: the answer has more than {most >> 20} MiB")

    def get(self, path: str) -> Any:
        """Read an object, as `send` does."""
        return self.send(ApiRequest("GET", path))

    def pods(self, node: str, version: str = "") -> tuple[list[Mapping[str, Any]], str]:
        """The pods of a node, and the version of the list.
        :param version: "0" for the server's cache, "" for the present state. :raises ClusterError: no list."""
        items: list[Mapping[str, Any]] = []
        more = ("resourceVersion", version)
        for _ in range(MAX_PAGES):
            request = ApiRequest("GET", _PODS, query=(_on(node), ("limit", str(PAGE)), *[more] * bool(more[1])))
            answer = self.send(request)
            with self._translated(str(request)):
                page, token, listed = parse_page(answer)
            items += page
            if not token:
                return items, listed
            more = ("continue", token)
        raise ClusterError(f"GET {_PODS}: more than {MAX_PAGES} pages of {PAGE}")

    def watch_pods(self, node: str, version: str, seconds: int,
                   begun: Callable[[], None]) -> Iterator[Mapping[str, Any]]:
        """Yield the events after a version, until the server ends the watch: `seconds` after its begin at the latest.
        :param begun: called when the server has accepted the watch.
        :raises ClusterError: the watch fails, or cannot begin."""
        request = ApiRequest("GET", _PODS, query=(_on(node), ("watch", "true"), ("resourceVersion", version), (
            "allowWatchBookmarks", "true"), ("timeoutSeconds", str(seconds))))
        with self._translated("watch pods"), self._response(request, seconds + OVER) as response:
            begun()
            buffer = b""
            for part in response.stream(65536, decode_content=True):
                *lines, buffer = (buffer + part).split(b"\n")
                if len(buffer) > MAX_LINE:
                    raise ClusterError(f"watch pods: a line has more than {MAX_LINE >> 20} MiB")
                yield from (parse_answer(line) for line in lines if line)

    def _response(self, request: ApiRequest, read: float) -> Any:
        """The response to a request, for a `with`; its body is not read yet.
        :param read: seconds for which the server may be silent. :raises ClusterError: its status is not 2xx."""
        client, urllib3 = self._connected()
        body = None if request.body is None else json.dumps(request.body, separators=(",", ":")).encode()
        headers = {"Accept": "application/json", "User-Agent": client.user_agent,
                   **({"Content-Type": request.content_type} if body is not None else {}), **_authorization(client)}
        url = client.configuration.host + request.path + (f"?{urlencode(request.query)}" if request.query else "")
        response = client.rest_client.pool_manager.request(
            request.method, url, body=body, headers=headers, retries=False, redirect=False,
            timeout=urllib3.Timeout(connect=CONNECT, read=read), preload_content=False)
        if not 200 <= response.status < 300:
            raise self._error(response.status, response.headers, _limited(response, MAX_REFUSAL))
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
                configuration = client.Configuration()
                try:
                    self._load(config, configuration)
                # The package's parsers raise the errors of YAML, base64 and of the user's commands.
                except Exception as err:
                    if self._configured:
                        raise ClusterError(f"the configuration cannot be read again: {err}") from err
                    hint = ("give --kubeconfig FILE and --context NAME, or set KUBECONFIG, as for kubectl"
                            if self._as_kubectl else
                            "run it in a pod with a service account, or set kubernetes.kubeconfig")
                    raise ConfigError(f"no API server is configured: {err}", hint) from err
                configuration.retries = False  # callers have their own pauses
                self._client, self._configured = client.ApiClient(configuration), True
                self._client.user_agent = "vmpin" if self._as_kubectl else "vmpin-reporter"
                options = self._client.rest_client.pool_manager.connection_pool_kw
                options |= {"socket_options": KEEPALIVE, "ssl_context": _tls_context(urllib3, options)}
            return self._client, urllib3

    def _load(self, config: Any, configuration: Any) -> None:
        """Fill a client's configuration. :raises Exception: of many kinds."""
        files = str(self._kubeconfig or "")
        if self._as_kubectl and not files:
            files = os.environ.get("KUBECONFIG") or "~/.kube/config"
            exists = any(os.path.exists(os.path.expanduser(file)) for file in files.split(os.pathsep))
            if not exists and not self._context and "KUBERNETES_SERVICE_HOST" in os.environ:
                files = ""
        if files:
            config.load_kube_config(files, context=self._context or None, client_configuration=configuration,
                                    persist_config=False)
        else:
            config.load_incluster_config(client_configuration=configuration)

    def _renew(self) -> None:
        with self._lock:
            self._client = None

    def _error(self, status: int, headers: Mapping[str, str], body: bytes | None) -> ClusterError:
        if status == 401:
            self._renew()
        message = refusal(body)
        if status == 422 and "metadata.uid: " in message:
            status = 409  # a patch with a uid, where another object has the name
        after = parse_whole(headers.get("Retry-After", ""), MAX_RETRY_AFTER) or 0
        return ClusterError(excerpt(message, 300) or f"HTTP status {status}", status, float(after))

    @contextmanager
    def _translated(self, request: str) -> Iterator[None]:
        """Turn urllib3's errors into ClusterError. :param request: what the message begins with."""
        try:
            _, urllib3 = self._connected()
            yield
        except ConfigError:  # of no request's making
            raise
        except ClusterError as err:
            text = str(err)
            raise ClusterError(text if request in text else f"{request}: {text}", err.status, err.after) from err
        except urllib3.exceptions.SSLError as err:
            self._renew()
            raise ClusterError(f"{request}: TLS: {err}") from err
        except (urllib3.exceptions.HTTPError, OSError) as err:
            raise ClusterError(f"{request}: {err}") from err
        except (ValueError, KeyError) as err:
            raise ClusterError(f"{request}: the answer is not the JSON of this API") from err


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


def _on(node: str) -> tuple[str, str]:
    return "fieldSelector", f"spec.nodeName={node}"


def _authorization(client: Any) -> dict[str, str]:
    return {setting["key"]: setting["value"] for setting in client.configuration.auth_settings().values()
            if setting["in"] == "header" and setting["value"]}


class ApiLink:
    """Whether the reporter reaches the API server: a file that exists while it does, for the readiness probe (a pod
    without a port has no other one but a command, and starting Python for each is expensive), and the reason while it
    does not. Called by the threads that make requests.
    :param ready: the file, None for none; one of an earlier process is removed.
    :param changed: called after each change of `trouble`."""

    def __init__(self, ready: Path | None, changed: Callable[[], None]) -> None:
        self._ready, self._changed = ready, changed
        self._lock = threading.Lock()
        #: By part: why it is not reached, "" where it is, None before its first request.
        self._troubles: dict[str, str | None] = dict.fromkeys(PARTS)
        self._show(False)

    @property
    def trouble(self) -> str:
        """Why the API server is not reached; "" where it is, or before the first request."""
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
