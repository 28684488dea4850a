"""`odradek node ready`, with the HTTP server of a supervisor."""

import json
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek.node.http_server import HttpServer
from odradek.node.supervisor import STATE_NAME as STATE_NAME_OF_THE_SUPERVISOR
from tests.node.cli.conftest import Run
from tests.support.ports import free_port


@contextmanager
def answering(status: int, text: str, host: str = "127.0.0.1") -> Iterator[int]:
    """/readyz answers so; the port."""
    with selectors.DefaultSelector() as selector:
        routes = {"/readyz": lambda _request, respond: respond(status, text)}
        server = HttpServer(selector, host=host, port=0, routes=routes, clock=time.monotonic)
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                for key, _ in selector.select(0.05):
                    key.data()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.port
        finally:
            is_over.set()
            thread.join()
            server.close()


def write_state(data: Path, http: str) -> None:
    state = {"bootstrap": "127.0.0.1:9092", "pid": 1, "children": {}, "http": http}
    # A state file is padded with spaces.
    (data / STATE_NAME_OF_THE_SUPERVISOR).write_text(json.dumps(state).ljust(1024))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1"])
def test_a_node_that_is_ready(odradek: Run, tmp_path: Path, host: str) -> None:
    with answering(200, "worker-0 ready\n", host) as port:
        write_state(tmp_path, f"{host}:{port}")
        ran = odradek("node", "ready", "--data", str(tmp_path))
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "worker-0 ready\n", "")


def test_a_node_that_is_not_ready_says_why(odradek: Run) -> None:
    with answering(503, "worker-0 starting\n") as port:
        ran = odradek("node", "ready", "--http", f"127.0.0.1:{port}")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (1, "", "worker-0 starting\n")


def test_a_node_that_does_not_run_or_cannot_be_asked(odradek: Run, tmp_path: Path) -> None:
    ran = odradek("node", "ready", "--data", str(tmp_path))
    assert ran.exit_code == 1
    assert f"no node in {tmp_path} is ready" in ran.stderr
    write_state(tmp_path, "")
    ran = odradek("node", "ready", "--data", str(tmp_path))
    assert ran.exit_code == 1
    assert "has no http.listen" in ran.stderr
    ran = odradek("node", "ready", "--http", f"127.0.0.1:{free_port()}")
    assert ran.exit_code == 1
    assert "/readyz does not answer: [Errno 111]" in ran.stderr
    assert odradek("node", "ready", "--http", "nowhere").exit_code == 2


def test_it_imports_nothing_of_the_broker() -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from odradek.node.cli.main import cli\n"
        "ran = CliRunner().invoke(cli, ['node', 'ready', '--http', '127.0.0.1:1'])\n"
        "assert ran.exit_code == 1, ran.output\n"
        "heavy = {'ssl', 'asyncio', 'msgspec', 'odradek.protocol.apis', 'odradek.node.config'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "[]\n"
