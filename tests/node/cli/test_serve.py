"""`odradek serve`, `odradek node start`, `odradek format` as processes of their own."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import pytest

from odradek.node.cli.serve import load_node, serve_defaults
from tests.node.cli.conftest import Run
from tests.support.ports import free_port, is_listening
from tests.support.waiting import wait_until


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of a node, and with its import path."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("ODRADEK_")}
    return {**own, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """A node, and the JSON that it printed when it was ready."""
    node = subprocess.Popen(
        [sys.executable, "-m", "odradek", *arguments, "--output", "json"],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    try:
        assert node.stdout is not None
        yield node, json.loads(node.stdout.readline())
    finally:
        if node.poll() is None:
            node.terminate()
        node.communicate(timeout=30)


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_serve_prints_its_address_and_stops_on_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}")
    with started("serve", *listen, "--data", str(tmp_path / "data")) as (node, state):
        assert state["bootstrap"] == f"127.0.0.1:{port}"
        assert state["pid"] == node.pid
        assert is_listening(port)
        node.send_signal(number)
        assert node.wait(20) == 0
    assert not is_listening(port)
    assert (tmp_path / "data" / "meta.properties").exists()


@pytest.mark.e2e
def test_serve_keeps_its_data_and_deletes_temporary_data(tmp_path: Path, odradek: Run) -> None:
    data = str(tmp_path / "data")
    for expected in ([], ["kept"]):
        with started("serve", "--listen", "127.0.0.1:0", "--data", data) as (_, state):
            bootstrap = str(state["bootstrap"])
            rows = odradek("topic", "list", "-o", "json", bootstrap=bootstrap).json()
            assert isinstance(rows, list)
            assert [row["topic"] for row in rows] == expected
            odradek("topic", "create", "kept", "--if-not-exists", bootstrap=bootstrap)
    with started("serve", "--listen", "127.0.0.1:0", "--temporary") as (_, state):
        folder = Path(str(state["data"]))
        assert folder.exists()
    assert not folder.exists()


def test_an_image_can_have_defaults_of_serve_that_settings_override(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("ODRADEK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ODRADEK_SERVE_DEFAULTS", "listeners=PLAINTEXT://:9092 log.level=INFO")
    environment = {**serve_defaults(os.environ), **os.environ, "ODRADEK_LOG_LEVEL": "ERROR"}
    config = load_node(None, environment, (), {"data": "/data"})
    assert (config.profile, config.log_level) == ("dev", "ERROR")
    assert [(each.host, each.port) for each in config.listeners] == [("", 9092)]
    # A node of `node start` has none of them.
    assert load_node(None, os.environ, (), {"data": "/data"}).listeners[0].host == "127.0.0.1"
    with pytest.raises(click.ClickException, match="'loud' is not of the form KEY=VALUE"):
        serve_defaults({"ODRADEK_SERVE_DEFAULTS": "loud"})


@pytest.mark.e2e
def test_an_attached_node_ends_with_standard_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "odradek", "serve", "--attached", "--output", "json"]
    command += ["--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment()
    ) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdout.readline()
        node.stdin.close()
        assert node.wait(20) == 0


@pytest.mark.e2e
@pytest.mark.parametrize("delay_s", [None, 0.3, 0.6])
def test_a_temporary_node_without_standard_input_ends_and_leaves_nothing(
    tmp_path: Path, delay_s: float | None
) -> None:
    """Standard input may end at once, or at any moment of the start."""
    command = [sys.executable, "-m", "odradek", "serve", "--temporary", "--attached"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        stdin=subprocess.DEVNULL if delay_s is None else subprocess.PIPE,
        env={**clean_environment(), "TMPDIR": str(tmp_path)},
    ) as node:
        if node.stdin is not None:
            # Not a wait for something: a moment of the start.
            with suppress(subprocess.TimeoutExpired):
                node.wait(delay_s)
            node.stdin.close()
        assert node.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.e2e
def test_a_node_starts_from_its_file_once_its_folder_is_formatted(
    tmp_path: Path, odradek: Run
) -> None:
    file = tmp_path / "node.properties"
    data = tmp_path / "data"
    file.write_text(f"node.id=7\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={data}\n")
    refused = odradek("node", "start", "--config", str(file))
    assert refused.exit_code == 1
    assert "not formatted" in refused.stderr
    assert odradek("format", "--config", str(file), "--cluster-id", "mine").exit_code == 0
    with started("node", "start", "--config", str(file)) as (_, state):
        bootstrap = str(state["bootstrap"])
        rows = odradek("broker", "list", "-o", "json", bootstrap=bootstrap).json()
        assert isinstance(rows, list)
        assert [(row["id"], row["cluster_id"]) for row in rows] == [(7, "mine")]


@pytest.mark.e2e
def test_a_running_node_follows_its_file_and_refuses_a_bad_one(
    tmp_path: Path, odradek: Run
) -> None:
    file = tmp_path / "node.toml"
    own = f'data = "{tmp_path}/data"\nlisteners = "127.0.0.1:0"\nworkers = 1\n'
    file.write_text(own + 'broker.rack = "a"\n')
    http = f"127.0.0.1:{free_port()}"

    def page(path: str) -> str:
        with suppress(OSError), urllib.request.urlopen(f"http://{http}{path}", timeout=5) as got:
            return str(got.read().decode())
        return ""

    with started("node", "start", "--config", str(file), "--format") as (_, state):
        bootstrap = str(state["bootstrap"])

        def partitions(topic: str) -> int:
            odradek("topic", "create", topic, bootstrap=bootstrap)
            described = odradek("topic", "describe", topic, "-o", "json", bootstrap=bootstrap)
            found = described.json()
            assert isinstance(found, list)
            return len(found[0]["partitions"])

        def rack() -> object:
            rows = odradek("broker", "list", "-o", "json", bootstrap=bootstrap).json()
            assert isinstance(rows, list)
            return rows[0]["rack"]

        assert partitions("before") == 1
        assert rack() == "a"
        changed = f'broker.rack = "b"\nnum.partitions = 3\nhttp.listen = "{http}"\n'
        file.write_text(own + changed)
        wait_until(lambda: "odradek_uptime" in page("/metrics"), what="http.listen of the file")
        ran = odradek("node", "ready", "--data", f"{tmp_path}/data")
        assert (ran.exit_code, ran.stdout.splitlines()[0]) == (0, "controller ready")
        wait_until(lambda: rack() == "b", what="the rack of the file")
        assert partitions("after") == 3
        file.write_text(own + changed + "num.partitons = 4\n")
        wait_until(lambda: "num.partitons" in page("/readyz"), what="the refused file is told")
        assert 'odradek_config_file_refused{process="supervisor"} 1' in page("/metrics")
        assert partitions("refused") == 3
        why = odradek("config", "why", "num.partitions", "-o", "json", bootstrap=bootstrap).json()
        assert isinstance(why, dict)
        assert [(layer["value"], layer["origin"]) for layer in why["layers"]] == [
            ("3", f"{file} line 5"),
            ("1", "built-in default"),
        ]
        assert "Unknown broker config name: num.partitons" in why["explanation"][-1]
        diagnosed = odradek("doctor", bootstrap, bootstrap=bootstrap)
        assert diagnosed.exit_code == 1
        assert "refuses its configuration file" in diagnosed.stderr
        file.write_text(own.replace("workers = 1", "workers = 2") + changed)
        wait_until(lambda: "worker-1 ready" in page("/readyz"), what="two workers")
        assert "num.partitons" not in page("/readyz")
        assert partitions("valid-again") == 3
        authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        file.write_text(own + changed + f'authorizer.class.name = "{authorizer}"\n')
        denied = ("config", "list", "broker", "0")
        wait_until(lambda: odradek(*denied, bootstrap=bootstrap).exit_code == 1, what="ACLs")
        file.write_text(own + changed)
        wait_until(lambda: odradek(*denied, bootstrap=bootstrap).exit_code == 0, what="no ACLs")


@pytest.mark.e2e
def test_a_port_in_use_is_an_error_before_the_node_starts(tmp_path: Path) -> None:
    with started("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "a")) as (_, state):
        bootstrap = str(state["bootstrap"])
        command = [sys.executable, "-m", "odradek", "serve", "--listen", bootstrap]
        ran = subprocess.run(
            [*command, "--data", str(tmp_path / "b")],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            env=clean_environment(),
        )
        assert ran.returncode == 1
        assert bootstrap.rpartition(":")[2] in ran.stderr
        assert is_listening(int(bootstrap.rpartition(":")[2]))


def test_all_wrong_settings_are_named_with_the_expected_values(odradek: Run) -> None:
    ran = odradek("serve", "--set", "log.retention.ms=soon", "--set", "no.such.key=1")
    assert ran.exit_code == 1
    assert (
        "Invalid value soon for configuration log.retention.ms: Not a number of type LONG"
        in ran.stderr
    )
    assert "Unknown broker config name: no.such.key" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_what_keeps_a_node_from_starting_is_json_where_its_log_is(
    odradek: Run, tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("no.such.key=1\n")
    for arguments in (("serve", "--set", "no.such.key=1"), ("node", "start", "-c", str(file))):
        ran = odradek(*arguments)
        assert ran.exit_code == 1
        entry = json.loads(ran.stderr)
        assert (entry["level"], entry["process"], entry["event"]) == (
            *("critical", "supervisor", "the node does not start"),
        )
        assert "Unknown broker config name: no.such.key" in entry["reason"]
        assert entry["action"]
    file.write_text(f"no.such.key=1\ndata={tmp_path}\nlog.format=text\n")
    refused = odradek("node", "start", "-c", str(file))
    assert refused.stderr.startswith("Error: wrong settings\n  Unknown broker config name")
    # A setting wins over the file, also over one that is no good.
    refused = odradek("node", "start", "-c", str(file), "--set", "log.format=json")
    assert "no.such.key" in json.loads(refused.stderr)["reason"]
    file.write_text(f"data={tmp_path}\n")
    refused = odradek("node", "start", "-c", str(file), "--set", "log.format=text")
    assert refused.stderr.startswith(f"Error: data={tmp_path}: this folder is not formatted")
    refused = odradek("node", "start", "-c", str(file))
    assert "not formatted" in json.loads(refused.stderr)["reason"]


@pytest.mark.parametrize(
    "key", ["cluster.secret", "sasl.jaas.config", "listener.name.a.ssl.key.password"]
)
def test_a_secret_is_not_taken_from_the_command_line(odradek: Run, key: str) -> None:
    ran = odradek("serve", "--set", f"{key}=a-secret-of-many-characters")
    assert ran.exit_code == 1
    assert "all users of this machine can read the arguments" in ran.stderr
    assert f"ODRADEK_{key.upper().replace('.', '_')}" in ran.stderr
    assert "a-secret-of" not in ran.stderr


def test_variables_of_the_client_are_not_settings_of_a_node(tmp_path: Path, odradek: Run) -> None:
    ran = odradek("format", "--data", str(tmp_path / "data"), bootstrap="127.0.0.1:1")
    assert ran.exit_code == 0, ran.stderr


@pytest.mark.e2e
def test_a_node_that_others_reach_without_a_login_prints_one_warning(tmp_path: Path) -> None:
    command = ["serve", "--temporary", "--listen", f"0.0.0.0:{free_port()}", "--output", "json"]
    with (tmp_path / "errors").open("wb") as errors:
        node = subprocess.Popen(
            [sys.executable, "-m", "odradek", *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=clean_environment(),
        )
    try:
        assert node.stdout is not None
        assert node.stdout.readline()
    finally:
        node.terminate()
        node.communicate(timeout=30)
    [warning] = (tmp_path / "errors").read_text().splitlines()
    assert "may read and change everything" in warning
    assert "odradek format --hardened" in warning


def test_data_and_temporary_exclude_each_other(odradek: Run) -> None:
    assert odradek("serve", "--data", "x", "--temporary").exit_code == 2
