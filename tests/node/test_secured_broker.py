"""The secured broker lets in who has its credentials, and nobody else."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from odradek.node.secured_broker import MECHANISMS, SecuredBroker
from odradek.protocol.errors import ApiError

pytestmark = pytest.mark.e2e


def topics_of(properties: dict[str, Any], timeout_s: float = 10.0) -> list[str]:
    return sorted(AdminClient({**properties, "log_level": 0}).list_topics(timeout=timeout_s).topics)


def test_every_mechanism_has_its_credentials_at_once(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path) as secured:
        secured.broker.create_topic("orders")

        def with_token(lifetime_s: float) -> Callable[[object], tuple[str, float]]:
            token = secured.access_token(lifetime_s=lifetime_s)
            return lambda _: (token, time.time() + 600)

        for mechanism in MECHANISMS:
            properties: dict[str, Any] = dict(secured.properties(mechanism))
            if mechanism == "OAUTHBEARER":
                properties["oauth_cb"] = with_token(600)
            assert topics_of(properties) == ["orders"], mechanism
        refused: list[dict[str, Any]] = [
            {"bootstrap.servers": secured.bootstrap_servers},
            {**secured.properties("PLAIN"), "sasl.password": "wrong"},
            {**secured.properties("OAUTHBEARER"), "oauth_cb": with_token(-600)},
        ]
        for properties in refused:
            with pytest.raises(KafkaException):
                topics_of(properties, 0.7)
        secured.add_user("bob", "geheim")
        bob = {"sasl.username": "bob", "sasl.password": "geheim"}
        assert topics_of({**secured.properties("SCRAM-SHA-256"), **bob}) == ["orders"]
        secured.remove_user("bob")
        with pytest.raises(ApiError):
            secured.remove_user("bob")
        with pytest.raises(KafkaException):
            topics_of({**secured.properties("SCRAM-SHA-256"), **bob}, 0.7)
        arguments = Path(f"/proc/{secured.broker.pid}/cmdline").read_text()
        assert secured.password not in arguments
        assert secured.password not in secured.broker.log()
