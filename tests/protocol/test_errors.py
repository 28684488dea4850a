from kio.schema.errors import ErrorCode as KioErrorCode

from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError


def test_codes_and_names_are_kafkas() -> None:
    ours = {code.name.casefold(): int(code) for code in ErrorCode}
    theirs = {code.name.casefold(): int(code) for code in KioErrorCode}
    assert ours | theirs == ours
    assert len(ours) == 138
    assert sorted(ours.values()) == list(range(-1, 137))


def test_what_a_client_may_retry_is_what_kio_says_where_it_knows_the_code() -> None:
    ours = {int(code): code.is_retriable for code in ErrorCode}
    assert all(ours[int(code)] == code.retriable for code in KioErrorCode)


def test_every_failure_has_a_text_of_its_own() -> None:
    texts = [code.message for code in ErrorCode]
    assert len(set(texts)) == len(texts)
    assert [code for code in ErrorCode if not code.message] == [ErrorCode.NONE]
    assert all(text.endswith(".") for text in texts if text)


def test_a_code_is_an_integer_for_the_codec_and_for_comparisons() -> None:
    assert {16: "found"}[ErrorCode.NOT_COORDINATOR] == "found"
    assert ErrorCode(16) is ErrorCode.NOT_COORDINATOR


def test_an_api_error_carries_the_codes_text_unless_it_has_its_own() -> None:
    assert ApiError(ErrorCode.NOT_COORDINATOR).message == ErrorCode.NOT_COORDINATOR.message
    error = ApiError(ErrorCode.INVALID_CONFIG, "retention.ms must be a number")
    assert (error.code, error.message) == (
        ErrorCode.INVALID_CONFIG,
        "retention.ms must be a number",
    )
    assert str(error) == "INVALID_CONFIG: retention.ms must be a number"


def test_a_protocol_error_is_a_value_error() -> None:
    assert issubclass(ProtocolError, ValueError)
