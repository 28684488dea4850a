"""The fixture as another project sees it: in its own pytest run."""

import os
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

# The plugin by name, as the installed entry point loads it; nothing of our own conftest.
RUN = ("-p", "odradek.testing", "-p", "no:cacheprovider")

USES_THE_BROKER = """
import socket


def test_first(kafka_broker):
    host, port = kafka_broker.bootstrap_servers.split(":")
    socket.create_connection((host, int(port)), 5).close()
    kafka_broker.create_topic("shared", partitions=2)


def test_second_has_the_same_broker(kafka_broker):
    import pytest
    from odradek.protocol.errors import ApiError

    with pytest.raises(ApiError):
        kafka_broker.create_topic("shared")
    kafka_broker.kill_worker()
    kafka_broker.wait_until_ready()
    kafka_broker.restart()
"""


def run_pytest(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    pytester._monkeypatch.setenv("PYTHONPATH", path)
    pytester._monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester.runpytest_subprocess(*RUN, *arguments)


@pytest.mark.e2e
def test_a_session_shares_one_real_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USES_THE_BROKER)
    run_pytest(pytester).assert_outcomes(passed=2)


@pytest.mark.e2e
def test_clients_of_the_secured_broker_authenticate(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from confluent_kafka.admin import AdminClient

        def test_it(kafka_broker_secured):
            client = AdminClient(kafka_broker_secured.properties("SCRAM-SHA-512"))
            assert client.list_topics(timeout=10).brokers
        """
    )
    run_pytest(pytester).assert_outcomes(passed=1)


@pytest.mark.e2e
def test_a_project_chooses_the_settings_of_its_broker(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_settings():
            return {"no.such.setting": "1"}
        """
    )
    pytester.makepyfile("def test_it(kafka_broker): pass")
    result = run_pytest(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no.such.setting*"])


def test_the_fixtures_explain_themselves(pytester: pytest.Pytester) -> None:
    result = run_pytest(pytester, "--fixtures")
    for name in ("kafka_broker", "kafka_broker_secured"):
        result.stdout.fnmatch_lines([f"{name} ?session scope?*", "*A real Odradek*"])


def test_loading_the_plugin_loads_nothing_else_of_odradek() -> None:
    """Every pytest run on a machine with Odradek pays for this import."""
    program = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import odradek.testing\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert printed.stdout == "['odradek', 'odradek.testing']\n"
