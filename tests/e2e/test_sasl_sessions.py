"""Sessions of clients whose credential is revoked, or whose access token expires: the client hears
an error, the broker keeps nothing of it, and other connections go on (KIP-368)."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, Producer

from tests.e2e.sasl_node import (
    Properties,
    SaslNode,
    access_token,
    odradek,
    odradek_metrics,
    password,
)
from tests.support.java import ROUND_TRIPS, java_command, why_no_java_tools
from tests.support.waiting import LIVENESS_S, wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    # With Kafka's 30 s a token that has expired makes sessions that end at once.
    skew = {"sasl.oauthbearer.clock.skew.seconds": "0"}
    node = SaslNode(tmp_path_factory.mktemp("sasl"), **skew)
    with node.broker:
        node.add_user("bob", password("bob"))
        yield node


@contextmanager
def producing(properties: Properties, topic: str) -> Iterator[list[KafkaError]]:
    """A client that produces all the time; its errors."""
    errors: list[KafkaError] = []
    stopped = threading.Event()
    with_callback: Properties = {**properties, "error_cb": errors.append, "linger.ms": 0}
    producer = Producer(with_callback)

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            errors.append(error)

    def work() -> None:
        while not stopped.is_set():
            producer.produce(topic, b"x", on_delivery=delivered)
            producer.poll(0.01)

    load = threading.Thread(target=work)
    load.start()
    try:
        yield errors
    finally:
        stopped.set()
        load.join()
        producer.purge()


def test_a_revoked_credential_ends_a_session_and_no_other(node: SaslNode) -> None:
    """Both clients authenticate again in time, until one has no credential any more."""
    node.add_user("frank", password("frank"))
    frank, bob = (
        node.librdkafka("SCRAM-SHA-256", listener="EXPIRING", user=user)
        for user in ("frank", "bob")
    )
    with producing(frank, "revoked") as of_frank, producing(bob, "revoked") as of_bob:

        def renewed() -> bool:
            metrics = odradek_metrics(node)
            return metrics.get("reauthentication_success", 0) >= 2

        wait_until(renewed, timeout_s=LIVENESS_S, what="both have authenticated again")
        assert (of_frank, of_bob) == ([], [])
        odradek("user", "remove", "frank", bootstrap=node.broker.bootstrap_servers)
        wait_until(
            lambda: any(e.code() == KafkaError._AUTHENTICATION for e in of_frank),
            timeout_s=LIVENESS_S,
            what="the revoked user is refused",
        )
        assert of_bob == []
    assert odradek_metrics(node).get("expired", 0) == 0


class Token:
    """A file with an access token of four seconds, which is replaced all the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_stopped = threading.Event()
        self._replace()
        self._work = threading.Thread(target=self._replace_again)
        self._work.start()

    def close(self) -> None:
        """The last token is left to expire."""
        self._is_stopped.set()
        self._work.join()

    def _replace(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(access_token("dave", lifetime_s=4.0))
        new.replace(self.path)

    def _replace_again(self) -> None:
        while not self._is_stopped.wait(0.3):
            self._replace()


class Writer:
    """A process that writes until an error."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._printed, self._complained = folder / "printed", folder / "complained"
        folder.mkdir(exist_ok=True)
        with self._printed.open("wb") as stdout, self._complained.open("wb") as stderr:
            self._process = subprocess.Popen(command, stdout=stdout, stderr=stderr)

    def has_written(self) -> bool:
        assert self._process.poll() is None, self.told()
        return self._printed.read_text().startswith("written\n")

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def error(self) -> str:
        return self._printed.read_text().removeprefix("written\n").strip()

    def told(self) -> str:
        return self._printed.read_text() + self._complained.read_text()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def writers_of(node: SaslNode, folder: Path, token: Path) -> dict[str, Writer]:
    """kafka-python and aiokafka with SCRAM and an access token, and Java with a token."""
    commands: dict[str, Sequence[str]] = {}
    for library in ("kafka-python", "aiokafka"):
        for mechanism, user in (("SCRAM-SHA-256", "grace"), ("OAUTHBEARER", "dave")):
            name = f"{library}-{mechanism}"
            arguments = node.python(mechanism, None, listener="EXPIRING", user=user)
            if arguments.pop("sasl_oauth_token_provider", "") is None:
                arguments["token"] = str(token)
            file = folder / f"{name}.json"
            file.write_text(json.dumps({**arguments, "topic": name}))
            command = (sys.executable, "-m", "tests.e2e.sasl_writer", library, str(file))
            commands[name] = command
    if not why_no_java_tools():
        file = folder / "java-OAUTHBEARER.properties"
        short = "delivery.timeout.ms=3000\nmax.block.ms=3000\nrequest.timeout.ms=2000\n"
        file.write_text(f"{node.java('OAUTHBEARER', token, listener='EXPIRING')}\n{short}")
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"
        commands[file.stem] = java_command(folder, allowed, ROUND_TRIPS, "--on", str(file))
    for name in commands:
        node.broker.create_topic(name)
    return {name: Writer(command, folder / name) for name, command in commands.items()}


def test_sessions_of_other_libraries_end(node: SaslNode, tmp_path: Path) -> None:
    router = psutil.Process(node.broker.processes["router-0"])
    node.add_user("grace", password("grace"))
    bob = node.librdkafka("SCRAM-SHA-256", listener="EXPIRING", user="bob")
    with producing(bob, "unharmed") as of_bob:
        wait_until(lambda: "unharmed" in node.broker.log(), what="the other client produces")
        descriptors = router.num_fds()
        with closing(Token(tmp_path / "token")) as token:
            writers = writers_of(node, tmp_path, token.path)
            for name, writer in writers.items():
                wait_until(writer.has_written, timeout_s=LIVENESS_S, what=f"{name} writes")
            # Longer than a session: they have authenticated again, or connected again.
            end = time.monotonic() + 3.5
            wait_until(
                lambda: not all(map(Writer.has_written, writers.values())) or time.monotonic() > end
            )
        odradek("user", "remove", "grace", bootstrap=node.broker.bootstrap_servers)
        try:
            for name, writer in writers.items():
                wait_until(writer.has_ended, timeout_s=LIVENESS_S, what=f"{name} hears an error")
        finally:
            for writer in writers.values():
                writer.close()
        errors = {name: writer.error() for name, writer in writers.items()}
        # The libraries of Python try again for as long as they are given. With a record on its way
        # when it authenticates again, kafka-python tells at once that it was refused.
        for name in errors:
            if not name.startswith("java"):
                assert "TimeoutError" in errors[name] or (
                    name.startswith("kafka-python") and "AuthenticationFailed" in errors[name]
                ), errors
        assert "SaslAuthenticationFailed" in writers["aiokafka-SCRAM-SHA-256"].told()
        if "java-OAUTHBEARER" in errors:
            assert '{"status":"invalid_token"}' in writers["java-OAUTHBEARER"].told()
        log = node.broker.log()
        assert "no user 'grace'" in log
        assert "it has expired" in log
        wait_until(lambda: router.num_fds() <= descriptors, what="nothing is left of them")
        assert of_bob == []
