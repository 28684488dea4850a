"""SASL requests on a listener without SASL, as in Kafka."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.router.handlers.sasl import handle_sasl_authenticate, handle_sasl_handshake
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.support.router_harness import RouterHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def test_both_are_refused(harness: RouterHarness) -> None:
    for version in range(2):
        chosen = harness.call(
            handle_sasl_handshake, SaslHandshakeRequest(mechanism="PLAIN"), version
        )
        assert (chosen.error_code, chosen.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    for version in range(3):
        answer = harness.call(handle_sasl_authenticate, SaslAuthenticateRequest(), version)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert answer.error_message
