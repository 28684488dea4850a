"""Stands in for a schema registry: an HTTP server with the part of Confluent's API that is read.

Schemas are kept per subject; ids begin at 1. `refuse_with` makes it refuse everything by a status.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StandInSchemaRegistry:
    """What it holds, and what was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.authorizations: set[str | None] = set()
        self.refuse_with: int | None = None
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}

    def register(
        self, subject: str, schema: str, references: Sequence[Mapping[str, object]] = ()
    ) -> int:
        """The id of the subject's new version. Protobuf is given in base64, as it is served."""
        self._schemas.append({"schema": schema, "references": list(references)})
        self._subjects.setdefault(subject, []).append(len(self._schemas))
        return len(self._schemas)

    def answer(self, path: str) -> tuple[int, object]:
        """(status, JSON) of a GET."""
        self.requests.append(path)
        if self.refuse_with is not None:
            return self.refuse_with, {"error_code": self.refuse_with, "message": "refused"}
        match path.partition("?")[0].strip("/").split("/"):
            case ["schemas", "ids", number] if 1 <= int(number) <= len(self._schemas):
                return 200, self._schemas[int(number) - 1]
            case ["schemas", "ids", _]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["subjects", subject, "versions", version] if subject in self._subjects:
                ids = self._subjects[subject]
                found = ids[-1 if version == "latest" else int(version) - 1]
                return 200, {**self._schemas[found - 1], "id": found, "subject": subject}
            case ["subjects", _, "versions", _]:
                return 404, {"error_code": 40401, "message": "Subject not found"}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def running_registry() -> Iterator[StandInSchemaRegistry]:
    """A registry on a free port of loopback."""
    registry = StandInSchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.authorizations.add(self.headers.get("Authorization"))
            status, answer = registry.answer(self.path)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The tests look at `requests`."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
