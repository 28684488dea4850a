"""What is said of a node's listeners before it starts."""

import logging
from pathlib import Path

import pytest

from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.listener_security import check_tls, warn_of_open_listeners
from tests.support.certificates import TestAuthority


def configured(listeners: str, **settings: str) -> NodeConfig:
    options = {key.replace("_", "."): text for key, text in settings.items()}
    return load(environment={}, options={"listeners": listeners, **options})


@pytest.mark.parametrize(
    ("listeners", "is_open"),
    [
        ("PLAINTEXT://127.0.0.1:9092", False),
        ("PLAINTEXT://[::1]:9092", False),
        ("PLAINTEXT://localhost:9092", False),
        ("SSL://:9092", False),
        ("PLAINTEXT://:9092", True),
        ("PLAINTEXT://0.0.0.0:9092", True),
        ("PLAINTEXT://broker.example:9092", True),
        ("PLAINTEXT://127.0.0.1:9092,EXTERNAL://10.0.0.1:9093", True),
    ],
)
def test_a_node_warns_of_listeners_at_which_anybody_may_do_everything(
    listeners: str, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_open_listeners(configured(listeners))
    assert len(caplog.messages) == is_open
    if is_open:
        assert "ssl.client.auth=required" in caplog.text
        assert "127.0.0.1:9092" not in caplog.messages[0]


def test_key_stores_that_cannot_be_used_are_errors_before_the_start(tmp_path: Path) -> None:
    check_tls(configured("PLAINTEXT://127.0.0.1:9092"))
    with pytest.raises(ConfigurationError, match=r"listener SSL: .* needs a key store"):
        check_tls(configured("SSL://:9093"))
    store = TestAuthority(tmp_path).issue("broker.pem")
    usable = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    check_tls(configured("SSL://:9093", **usable))
    own = {f"listener.name.ssl.{key}": text for key, text in usable.items()}
    check_tls(configured("SSL://:9093", **own))
