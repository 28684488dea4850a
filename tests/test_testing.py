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


AUTHENTICATES = """
import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def properties(broker, mechanism, **more):
    found = {**broker.properties(mechanism), "log_level": 0, **more}
    if mechanism == "OAUTHBEARER":
        found["oauth_cb"] = lambda _config: (broker.access_token(), time.time() + 3600)
    return found


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_records_go_through(kafka_broker_secured, mechanism):
    broker = kafka_broker_secured
    topic = f"orders-{mechanism.lower()}"
    broker.broker.create_topic(topic)
    producer = Producer(properties(broker, mechanism))
    producer.produce(topic, mechanism.encode())
    assert producer.flush(20) == 0
    consumer = Consumer(properties(broker, mechanism, **{"group.id": topic}))
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    message = consumer.poll(20)
    assert message is not None and message.value() == mechanism.encode()
    consumer.close()


def refusal(wrong):
    errors = []
    client = AdminClient({**wrong, "error_cb": lambda error: errors.append(error.code())})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)
    client.poll(0)
    return errors


@pytest.mark.parametrize("mechanism", ("PLAIN", "SCRAM-SHA-512"))
def test_a_wrong_password_is_refused(kafka_broker_secured, mechanism):
    wrong = {**properties(kafka_broker_secured, mechanism), "sasl.password": "wrong"}
    assert KafkaError._AUTHENTICATION in refusal(wrong)


def test_users_come_and_go(kafka_broker_secured):
    broker = kafka_broker_secured
    bob = {**properties(broker, "SCRAM-SHA-256"), "sasl.username": "bob", "sasl.password": "b-pass"}
    broker.add_user("bob", "b-pass")
    assert AdminClient(bob).list_topics(timeout=20).brokers
    broker.remove_user("bob")
    assert KafkaError._AUTHENTICATION in refusal(bob)
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
    pytester.makepyfile(AUTHENTICATES)
    run_pytest(pytester).assert_outcomes(passed=7)


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
