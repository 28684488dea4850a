"""What is said of a node's listeners before it starts."""

import logging
from pathlib import Path

import pytest

from odradek.cluster.metadata.config_definitions import ConfigSource
from odradek.cluster.metadata.config_layers import ConfigLayer
from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.listener_security import check_tls, warn_of_open_listeners
from tests.support.certificates import TestAuthority
from tests.support.log_lines import log_lines, log_text


def configured(listeners: str, **settings: str) -> NodeConfig:
    options = {key.replace("_", "."): text for key, text in settings.items()}
    return load(environment={}, options={"listeners": listeners, **options})


OPEN = "may read and change everything"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
LOGIN = {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}


@pytest.mark.parametrize(
    ("listeners", "settings", "says"),
    [
        ("PLAINTEXT://127.0.0.1:9092", {}, ""),
        ("PLAINTEXT://[::1]:9092", {}, ""),
        ("PLAINTEXT://localhost:9092", {}, ""),
        ("SASL_PLAINTEXT://127.0.0.1:9092", LOGIN, ""),
        ("SASL_SSL://:9092", LOGIN, ""),
        ("SSL://:9092", {"ssl.client.auth": "required"}, ""),
        ("SSL://:9092", {"listener.name.ssl.ssl.client.auth": "required"}, ""),
        ("SSL://:9092", {}, OPEN),
        ("PLAINTEXT://:9092", {}, OPEN),
        ("PLAINTEXT://0.0.0.0:9092", {}, OPEN),
        ("PLAINTEXT://broker.example:9092", {}, OPEN),
        ("PLAINTEXT://127.0.0.1:9092,EXTERNAL://10.0.0.1:9093", {}, OPEN),
        ("PLAINTEXT://:9092", {"authorizer.class.name": AUTHORIZER}, "without a login"),
        ("SASL_PLAINTEXT://:9092", LOGIN, "Whoever listens to the network"),
    ],
)
def test_a_node_warns_once_of_listeners_that_are_open(
    listeners: str, settings: dict[str, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        config = load(environment={}, options={"listeners": listeners, **settings})
        layer = ConfigLayer(ConfigSource.STATIC_BROKER, config.broker_configs)
        warn_of_open_listeners(config.listeners, (layer,))
    assert len(log_lines(caplog)) == bool(says)
    if says:
        assert says in log_text(caplog)
        assert "odradek format --hardened" in log_text(caplog)
        assert "127.0.0.1:9092" not in log_lines(caplog)[0]


def test_key_stores_that_cannot_be_used_are_errors_before_the_start(tmp_path: Path) -> None:
    check_tls(configured("PLAINTEXT://127.0.0.1:9092"))
    with pytest.raises(ConfigurationError, match=r"listener SSL: .* needs a key store"):
        check_tls(configured("SSL://:9093"))
    store = TestAuthority(tmp_path).issue("broker.pem")
    usable = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    check_tls(configured("SSL://:9093", **usable))
    own = {f"listener.name.ssl.{key}": text for key, text in usable.items()}
    check_tls(configured("SSL://:9093", **own))
