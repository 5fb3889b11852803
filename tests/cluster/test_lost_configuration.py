"""A client whose token is refused reads its configuration again, which may be replaced at that moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cluster.reporter_node import CLIENTS, client
from cluster.server import DEADLINE

pytestmark = pytest.mark.cluster

_ASK = """\
import sys
from pathlib import Path
from vmpin.errors import VmpinError
from vmpin.features.cluster.reporter.api_server import ApiServer
file = Path(sys.argv[1])
whole, server = file.read_text(), ApiServer(file)

def ask(server, path):
    try:
        print(server.get(path))
    except VmpinError as err:
        print(type(err).__name__, err)

ask(server, "/a")
file.unlink()
ask(server, "/b")
ask(ApiServer(file), "/c")
file.write_text(whole)
ask(server, "/d")
"""


@pytest.mark.parametrize("version", CLIENTS)
def test_a_configuration_that_cannot_be_read_again_is_one_requests_trouble(version: str, tmp_path: Path) -> None:
    """Later requests succeed, and the reporter does not end. Where there has been none, the command line is wrong."""
    statuses = [401, 200]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.pop(0))
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Nothing on standard error."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server, client(version) as package:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            kubeconfig = tmp_path / "config"
            kubeconfig.write_text(json.dumps({
                "current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "users": [{"name": "a", "user": {}}]}))
            modules = os.pathsep.join(map(str, (package, Path(__file__).parents[2])))
            done = subprocess.run([sys.executable, "-c", _ASK, kubeconfig], capture_output=True, text=True,
                                  env={"PATH": os.environ["PATH"], "PYTHONPATH": modules}, timeout=DEADLINE,
                                  check=False)
        finally:
            server.shutdown()
            thread.join()
    assert done.returncode == 0, done.stderr
    refused, lost, absent, found = done.stdout.splitlines()
    assert refused.startswith("ClusterError GET /a: ")
    assert lost.startswith("ClusterError GET /b: the configuration cannot be read again: ")
    assert absent.startswith("ConfigError no API server is configured: ")
    assert (found, statuses) == ("{}", [])
