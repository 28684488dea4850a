"""A node's configuration: sources, defaults, and all errors at once."""

from pathlib import Path

import pytest

from odradek.node.config import (
    DEFAULT_PORT,
    ListenerConfig,
    NodeConfig,
    load,
)
from odradek.node.config_sources import ConfigurationError, environment_name
from odradek.node.machine_defaults import default_worker_count
from odradek.storage.settings import Durability


def configured(**options: str) -> NodeConfig:
    return load(
        environment={}, options={key.replace("_", "."): text for key, text in options.items()}
    )


def faults_of(**options: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        configured(**options)
    return list(caught.value.faults)


def test_the_defaults_are_a_complete_configuration() -> None:
    config = configured()
    assert config.node_id == 0
    assert config.listeners == (
        ListenerConfig(name="PLAINTEXT", host="127.0.0.1", port=DEFAULT_PORT),
    )
    assert config.worker_count == default_worker_count()
    assert config.durability is Durability.INTERVAL
    assert config.http_port is None
    assert config.static_configs == {}


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('node.id = 1\nworkers = 1\nstores = 3\nlog.level = "debug"\n')
    config = load(
        file=file,
        environment={"ODRADEK_WORKERS": "2", "ODRADEK_STORES": "4", "PATH": "/bin"},
        options={"stores": "5"},
    )
    assert (config.node_id, config.worker_count, config.store_count) == (1, 2, 5)
    assert config.log_level == "DEBUG"


def test_kafkas_own_settings_are_kept_by_kafkas_names(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nbroker.id=4\nlog.dirs=/tmp/kafka-logs\n"
        "log.retention.hours=2\nnum.partitions=3\nnum.io.threads=8\n"
    )
    config = load(file=file, environment={"ODRADEK_AUTO_CREATE_TOPICS_ENABLE": "false"})
    assert config.node_id == 4
    assert config.data_folder == Path("/tmp/kafka-logs")
    assert config.static_configs == {
        "log.retention.hours": "2",
        "num.partitions": "3",
        "auto.create.topics.enable": "false",
        "num.io.threads": "8",
        "process.roles": "broker,controller",
    }
    assert config.settings_without_effect == ["num.io.threads", "process.roles"]


def test_a_node_may_have_several_log_directories(tmp_path: Path) -> None:
    def folders(**options: str) -> list[str]:
        written = {key.replace("_", "."): text for key, text in options.items()}
        return [each.path for each in load(environment={}, options=written).log_dirs]

    assert folders(log_dirs="/a, /b/c") == ["/a", "/b/c"]
    assert folders(data="/x", log_dirs="/a,/b") == ["/x", "/a", "/b"]
    assert folders(data="/b", log_dirs="/a,/b") == ["/b", "/a"]
    assert folders(data="/x") == ["/x"]
    file = tmp_path / "node.toml"
    file.write_text('data = "/a"\nlog.dirs = ["/a", "/b"]\n')
    config = load(file=file, environment={})
    assert config.broker_configs["log.dirs"] == "/a,/b"
    assert config.broker_configs["log.dir"] == "/a"
    assert config.stores_folders == (Path("/a/stores"), Path("/b/stores"))


@pytest.mark.parametrize(
    ("text", "reason"), [("/a,/b,/a", "/a occurs twice"), ("/a,/a/b", "/a/b is within /a")]
)
def test_log_directories_are_different_folders(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        load(environment={}, options={"log.dirs": text})


def test_listeners_have_names_protocols_and_addresses_for_others() -> None:
    config = configured(
        listeners="INTERNAL://:9092, EXTERNAL://[::1]:9093",
        advertised_listeners="EXTERNAL://broker.example:30093",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
    )
    internal, external = config.listeners
    assert (internal.host, internal.port, internal.advertised_host) == ("", 9092, None)
    assert (external.host, external.port) == ("::1", 9093)
    assert (external.advertised_host, external.advertised_port) == ("broker.example", 30093)


@pytest.mark.parametrize(
    ("key", "text", "right"),
    [
        ("node.id", "one", "Not a number of type INT"),
        ("workers", "0", "Value must be at least 1"),
        ("stores", "1000", "Value must be no more than 256"),
        ("profile", "test", "String must be one of: dev, standard"),
        ("durability", "fsync", "String must be one of: interval, commit"),
        ("log.level", "loud", "String must be one of: DEBUG, INFO, WARNING, ERROR"),
        ("arena.bytes", "1MiB", "from 16MiB up"),
        ("arena.bytes", "plenty", "for example 256MiB"),
        ("listeners", "localhost", "must be host:port"),
        ("listeners", "A://:1,A://:2", "Two listeners have the name A"),
        ("listeners", "::1:9092", "in brackets"),
        ("listeners", "", "at least one listener"),
        ("listener.security.protocol.map", "A:HTTP", "NAME:PROTOCOL"),
        ("advertised.listeners", "B://broker:9092", "B is no listener"),
        ("http.listen", "9644", "must be host:port"),
        ("data", "/a,/b", "Must be one folder"),
        ("run", "/tmp/" + "x" * 100, "shorter than 80"),
        ("cluster.id", "our cluster", "letters, digits"),
        ("log.retention.ms", "a week", "log.retention.ms"),
        ("log.retension.ms", "1", "is log.retention.ms meant?"),
        ("worker", "1", "is workers meant?"),
        ("retention.ms", "1", "log.retention.ms is the default of all topics"),
        ("confluent.support.metrics.enable", "x", "Unknown broker config name: confluent"),
        ("authorizer.class.name", "X", "There is one authorizer"),
        ("routers", "2", "one router a node"),
    ],
)
def test_an_error_has_key_value_reason_and_origin(key: str, text: str, right: str) -> None:
    (fault,) = faults_of(**{key: text})
    assert fault.startswith(
        (f"Invalid value {text} for configuration {key}: ", f"Unknown broker config name: {key}")
    )
    assert right in fault
    assert "the command line" in fault


def test_all_errors_are_reported_at_once() -> None:
    assert len(faults_of(node_id="x", workers="y", nonsense="z")) == 3


def test_contradicting_settings_are_errors() -> None:
    assert "a worker owns whole stores" in faults_of(workers="9", stores="4")[0]
    assert "less than" in faults_of(**{"group.consumer.heartbeat.interval.ms": "60000"})[-1]
    small = faults_of(arena_bytes="32MiB")
    assert "twice socket.request.max.bytes" in small[0]
    configured(arena_bytes="32MiB", socket_request_max_bytes="16000000")
    assert "several listeners have port" in faults_of(listeners="A://:9092,B://:9092")[0]


def test_the_dev_profile_is_small_and_can_be_made_bigger() -> None:
    small = configured(profile="dev")
    assert (small.worker_count, small.arena_bytes) == (1, 256 << 20)
    assert configured(profile="dev", workers="3", arena_bytes="2 GiB").arena_bytes == 2 << 30


def test_the_dev_profile_lets_consumers_that_start_together_form_one_generation() -> None:
    delay = "group.initial.rebalance.delay.ms"
    assert configured(profile="dev").broker_configs[delay] == "100"
    assert configured(profile="dev", **{delay: "0"}).broker_configs[delay] == "0"
    assert delay not in configured().broker_configs


def test_the_configuration_round_trips_as_json(tmp_path: Path) -> None:
    config = configured(listeners="A://:0", log_retention_ms="5", durability="commit")
    path = tmp_path / "config.json"
    config.save_json(path)
    assert NodeConfig.load_json(path) == config
    assert path.stat().st_mode & 0o077 == 0


def test_the_controlled_shutdown_timeout_is_bounded() -> None:
    assert configured().controlled_shutdown_ms == 10_000
    assert configured(controlled_shutdown_timeout_ms="0").controlled_shutdown_ms == 0
    (fault,) = faults_of(controlled_shutdown_timeout_ms="-1")
    assert "Invalid value -1 for configuration controlled.shutdown.timeout.ms" in fault


def test_another_count_of_workers_does_not_change_what_was_configured() -> None:
    config = configured(workers="2").with_workers(4).with_workers(3)
    assert config.worker_count == 3
    assert config.broker_configs["workers"] == "2"
    assert configured(workers="2").broker_configs["workers"] == "2"


def test_a_variable_may_name_the_file_of_a_secret(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hush: = \n")
    jaas = tmp_path / "jaas"
    jaas.write_text("a.b.PlainLoginModule required;\r\n")
    cluster = tmp_path / "cluster"
    cluster.write_text("s" * 40)
    key = "listener.name.clients.plain.sasl.jaas.config"
    config = load(
        environment={
            "ODRADEK_SSL_KEY_PASSWORD_FILE": str(password),
            environment_name(key) + "_FILE": str(jaas),
            "ODRADEK_CLUSTER_SECRET_FILE": str(cluster),
        }
    )
    assert config.broker_configs["ssl.key.password"] == "hush: = "
    assert config.broker_configs[key] == "a.b.PlainLoginModule required;"
    # The file of this setting is followed.
    assert (config.secret_file, config.cluster_secrets) == (str(cluster), ("s" * 40,))
    assert config.sources["ssl.key.password"] == (
        ("[hidden]", "environment variable ODRADEK_SSL_KEY_PASSWORD_FILE"),
    )


def test_files_are_for_secrets_only_and_have_to_be_readable(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ConfigurationError) as caught:
        load(
            environment={
                "ODRADEK_SSL_KEY_PASSWORD_FILE": str(missing),
                "ODRADEK_SSL_KEY_PASSWORD": "hush",
            }
        )
    both, unreadable = caught.value.faults
    assert "ODRADEK_SSL_KEY_PASSWORD and ODRADEK_SSL_KEY_PASSWORD_FILE are both set" in both
    assert unreadable == (
        f"ODRADEK_SSL_KEY_PASSWORD_FILE: cannot read {missing}: No such file or directory"
    )
    with pytest.raises(ConfigurationError, match=r"log\.retention\.ms\.file"):
        load(environment={"ODRADEK_LOG_RETENTION_MS_FILE": str(missing)})


def test_the_sources_of_settings_are_known_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "node.properties"
    file.write_text("num.partitions=2\ncluster.secret=" + "s" * 40 + "\n")
    config = load(
        file=file,
        environment={"ODRADEK_NUM_PARTITIONS": "3", "ODRADEK_SSL_KEY_PASSWORD": "hush"},
        options={"num.partitions": "4"},
    )
    assert config.sources["num.partitions"] == (
        ("4", "the command line"),
        ("3", "environment variable ODRADEK_NUM_PARTITIONS"),
        ("2", f"{file} line 1"),
    )
    assert config.sources["cluster.secret"] == (("[hidden]", f"{file} line 2"),)
    assert config.sources["ssl.key.password"][0][0] == "[hidden]"
    assert config.broker_configs["num.partitions"] == "4"
