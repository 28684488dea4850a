"""`odradek config` against a cluster."""

from pathlib import Path

import pytest

from odradek.node.log_levels import LOGGERS
from tests.node.cli.conftest import Run

pytestmark = pytest.mark.e2e


def own_settings(kafka: Run, kind: str, name: str) -> dict[str, tuple[str, str]]:
    rows = kafka("config", "list", kind, name, "-o", "json").json()
    assert isinstance(rows, list)
    return {row["key"]: (row["value"], row["source"]) for row in rows}


def test_a_topics_setting_is_set_seen_and_unset(kafka: Run, topic: str) -> None:
    kafka("config", "set", "topic", topic, "retention.ms=60000", "cleanup.policy=compact,delete")
    settings = own_settings(kafka, "topic", topic)
    assert settings["retention.ms"] == ("60000", "dynamic_topic_config")
    assert settings["cleanup.policy"] == ("compact,delete", "dynamic_topic_config")
    kafka("config", "unset", "topic", topic, "retention.ms")
    settings = own_settings(kafka, "topic", topic)
    assert "retention.ms" not in settings
    assert "cleanup.policy" in settings


def test_a_dry_run_checks_and_changes_nothing(kafka: Run, topic: str) -> None:
    assert kafka("config", "set", "topic", topic, "retention.ms=1", "--dry-run").exit_code == 0
    assert "retention.ms" not in own_settings(kafka, "topic", topic)


def test_a_wrong_value_and_an_unknown_key_are_refused(kafka: Run, topic: str) -> None:
    wrong = kafka("config", "set", "topic", topic, "retention.ms=soon")
    assert wrong.exit_code == 1
    assert "retention.ms" in wrong.stderr
    unknown = kafka("config", "set", "topic", topic, "no.such.key=1")
    assert unknown.exit_code == 1
    assert "no.such.key" in unknown.stderr


def test_describe_shows_a_value_with_its_source(kafka: Run, topic: str) -> None:
    described = kafka("config", "describe", "topic", topic, "max.message.bytes", "-o", "json")
    rows = described.json()
    assert isinstance(rows, list)
    assert rows[0]["key"] == "max.message.bytes"
    assert rows[0]["source"] == "default_config"
    assert rows[0]["read_only"] is False


def test_describing_a_key_that_is_not_there_fails(kafka: Run, topic: str) -> None:
    ran = kafka("config", "describe", "topic", topic, "no.such.key")
    assert ran.exit_code == 1
    assert "has no setting no.such.key" in ran.stderr


def test_a_brokers_settings_are_listed(kafka: Run) -> None:
    brokers = kafka("broker", "list", "-o", "json").json()
    assert isinstance(brokers, list)
    rows = kafka("config", "list", "broker", str(brokers[0]["id"]), "--all", "-o", "json").json()
    assert isinstance(rows, list)
    assert "log.retention.ms" in {row["key"] for row in rows}


def test_a_brokers_name_is_its_id(kafka: Run) -> None:
    ran = kafka("config", "list", "broker", "first")
    assert ran.exit_code == 2
    assert "'first' is not a broker id such as 0, nor 'default' for all of them" in ran.stderr


def test_log_levels_of_a_broker_are_listed_set_and_unset(kafka: Run) -> None:
    name = ("broker-logger", "0")
    assert own_settings(kafka, *name) == {}
    kafka("config", "set", *name, "odradek.node.wire=DEBUG")
    set_ones = [logger for logger in LOGGERS if logger.startswith("odradek.node.wire")]
    assert own_settings(kafka, *name) == dict.fromkeys(
        set_ones, ("DEBUG", "dynamic_broker_logger_config")
    )
    described = kafka("config", "describe", *name, "odradek.node.wire.acceptor", "-o", "json")
    rows = described.json()
    assert isinstance(rows, list)
    assert [layer["key"] for layer in rows[0]["layers"]] == ["odradek.node.wire", "log.level"]
    wrong = kafka("config", "set", *name, "odradek.node.wire=LOUD")
    assert (wrong.exit_code, "not a supported log level" in wrong.stderr) == (1, True)
    kafka("config", "unset", *name, "odradek.node.wire")
    assert own_settings(kafka, *name) == {}
    assert kafka("config", "list", "broker-logger", "default").exit_code == 2


def test_why_a_value_is_in_force(kafka: Run, topic: str) -> None:
    kafka("config", "set", "topic", topic, "retention.ms=60000")
    kafka("config", "set", "broker", "default", "log.retention.ms=70000")
    try:
        asked = kafka("config", "why", "retention.ms", "--topic", topic, "-o", "json").json()
        assert isinstance(asked, dict)
        assert (asked["value"], asked["resource"]) == ("60000", f"topic {topic}")
        assert [(x["value"], x["key"], x["origin"], x["in_force"]) for x in asked["layers"]] == [
            ("60000", "retention.ms", f"set on topic {topic}", True),
            ("70000", "log.retention.ms", "set for all brokers at run time", False),
            ("168", "log.retention.hours", "built-in default", False),
        ]
        text = kafka("config", "why", "retention.ms", "--topic", topic).stdout
        assert text.startswith(f"retention.ms of topic {topic} is 60000: set on topic {topic}.")
    finally:
        kafka("config", "unset", "broker", "default", "log.retention.ms")
    started_with = kafka("config", "why", "node.id", "--broker", "0").stdout
    assert "cannot be changed through the cluster" in started_with


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("num.partitons",), 1, "did you mean num.partitions?"),
        (("num.partitions", "--topic", "a", "--group", "b"), 2, "not both"),
        (("num.partitions", "--broker", "99"), 1, "99"),
        (("retention.ms", "--topic", "no-such-topic"), 1, "no such topic"),
    ],
)
def test_why_not(kafka: Run, arguments: tuple[str, ...], code: int, says: str) -> None:
    ran = kafka("config", "why", *arguments)
    assert ran.exit_code == code
    assert says in ran.stderr


def test_a_secret_is_read_from_a_file_and_never_shown(kafka: Run, tmp_path: Path) -> None:
    broker = ("broker", "0")
    refused = kafka("config", "set", *broker, "ssl.key.password=hush")
    assert refused.exit_code == 2
    assert "give --file ssl.key.password=FILE" in refused.stderr
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    done = kafka("config", "set", *broker, "--file", f"ssl.key.password={secret}")
    assert (done.exit_code, done.stdout) == (0, "broker 0: ssl.key.password = (hidden)\n")
    assert own_settings(kafka, *broker)["ssl.key.password"][0] == "(hidden)"
    why = kafka("config", "why", "ssl.key.password")
    assert "hush" not in why.stdout
    assert kafka("config", "unset", *broker, "ssl.key.password").exit_code == 0
    assert kafka("config", "set", *broker).exit_code == 2
    gone = kafka("config", "set", *broker, "--file", f"ssl.key.password={tmp_path}/gone")
    assert (gone.exit_code, "No such file" in gone.stderr) == (1, True)
