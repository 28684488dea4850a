from kio.schema.errors import ErrorCode as KioErrorCode

from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError


def test_error_codes_have_kafkas_numbers_and_names() -> None:
    ours = {code.name.casefold(): int(code) for code in ErrorCode}
    theirs = {code.name.casefold(): int(code) for code in KioErrorCode}
    assert ours | theirs == ours
    assert len(ours) == 138
    assert sorted(ours.values()) == list(range(-1, 137))


def test_the_same_codes_are_retriable_in_kio() -> None:
    ours = {int(code): code.is_retriable for code in ErrorCode}
    assert all(ours[int(code)] == code.retriable for code in KioErrorCode)


def test_every_error_has_its_own_message() -> None:
    texts = [code.message for code in ErrorCode]
    assert len(set(texts)) == len(texts)
    assert [code for code in ErrorCode if not code.message] == [ErrorCode.NONE]
    assert all(text.endswith(".") for text in texts if text)


def test_an_error_code_is_an_integer() -> None:
    assert {16: "found"}[ErrorCode.NOT_COORDINATOR] == "found"
    assert ErrorCode(16) is ErrorCode.NOT_COORDINATOR


def test_an_api_error_has_the_message_of_its_code_by_default() -> None:
    assert ApiError(ErrorCode.NOT_COORDINATOR).message == ErrorCode.NOT_COORDINATOR.message
    error = ApiError(ErrorCode.INVALID_CONFIG, "retention.ms must be a number")
    assert (error.code, error.message) == (
        ErrorCode.INVALID_CONFIG,
        "retention.ms must be a number",
    )
    assert str(error) == "INVALID_CONFIG: retention.ms must be a number"


def test_a_protocol_error_is_a_value_error() -> None:
    assert issubclass(ProtocolError, ValueError)
