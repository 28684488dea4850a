"""A release that is installed already, for `lookup` in the chart: an API server with its objects.

Helm asks it where it would ask Kubernetes (`--dry-run=server`); nothing is changed there.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import yaml

from tests.support.helm_chart import (
    CHART,
    KUBERNETES_VERSION,
    NAMESPACE,
    RELEASE,
    VALUES,
    Manifest,
    run_helm,
)

_PATHS: Final = {"StatefulSet": "/apis/apps/v1", "Secret": "/api/v1"}
"""Of the kinds that the chart looks up."""


class InstalledRelease:
    """Renders the chart as an upgrade of what is installed."""

    def __init__(self, port: int) -> None:
        self._port = port

    def upgrade(self, values: str, *settings: str) -> list[Manifest]:
        """The chart with a file of tests/helm/values and further values. Raises ChartError."""
        arguments = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES_VERSION]
        arguments += ["--dry-run=server", "--kube-apiserver", f"http://127.0.0.1:{self._port}"]
        arguments += ["--is-upgrade", "--values", str(VALUES / f"{values}.yaml")]
        for setting in settings:
            arguments += ["--set", setting]
        text = run_helm("template", RELEASE, str(CHART), *arguments)
        return [each for each in yaml.safe_load_all(text) if each]


@contextmanager
def installed(manifests: list[Manifest]) -> Iterator[InstalledRelease]:
    """These objects are in the Kubernetes cluster."""
    answers: dict[str, Any] = {"/version": {"gitVersion": f"v{KUBERNETES_VERSION}"}}
    for kind, path in _PATHS.items():
        resource = f"{kind.lower()}s"
        described = {"name": resource, "kind": kind, "namespaced": True, "verbs": ["get"]}
        group = path.split("/", 2)[2]
        answers[path] = {"kind": "APIResourceList", "groupVersion": group, "resources": [described]}
        for each in manifests:
            if each["kind"] == kind:
                name = each["metadata"]["name"]
                answers[f"{path}/namespaces/{NAMESPACE}/{resource}/{name}"] = each

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(missing if answer is None else answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield InstalledRelease(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
