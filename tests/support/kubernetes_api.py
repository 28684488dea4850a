"""An HTTPS server that answers as the API server of Kubernetes does, for labels of machines."""

import json
import ssl
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from odradek.node.certificate_authority import CertificateAuthority

TOKEN: Final = "token-of-the-service-account"
PREFIX: Final = "/api/v1/nodes/"


class KubernetesApi:
    """Has these machines with their labels. The credentials of a service account are written to
    `folder`, as `token` and `ca.crt`. `refusals` are the statuses of the next answers."""

    def __init__(
        self, folder: Path, machines: Mapping[str, Mapping[str, str]], host: str = "127.0.0.1"
    ) -> None:
        authority = CertificateAuthority.create("authority of a test", datetime.now(UTC))
        (folder / "ca.crt").write_text(authority.certificate)
        (folder / "token").write_text(TOKEN + "\n")
        chain = folder / "server.pem"
        chain.write_text(authority.issue("kubernetes", [host], datetime.now(UTC)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        self.refusals: list[int] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, machine = 200, self.path.removeprefix(PREFIX)
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    status = 401
                elif owner.refusals:
                    status = owner.refusals.pop(0)
                elif machine not in machines or not self.path.startswith(PREFIX):
                    status = 404
                labels = machines.get(machine, {})
                body = json.dumps({"kind": "Node", "metadata": {"labels": labels}}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.environment: Final = {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(self._server.server_address[1]),
        }
        """Of a container in the cluster."""

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
