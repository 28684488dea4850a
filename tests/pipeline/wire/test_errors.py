"""Names and numbers of errors are those of Kafka."""

from odradek.pipeline.wire.errors import BrokerError, error_name
from odradek.protocol.errors import ErrorCode


def test_names_are_those_of_the_protocol() -> None:
    for code in BrokerError:
        assert ErrorCode(code).name == code.name
        assert error_name(code) == code.name


def test_an_unknown_code_is_a_number() -> None:
    assert error_name(9999) == "error 9999"
