from odradek.protocol.apis import APIS, PRIVATE_KEY_MIN, Api, ApiKey
from odradek.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.share_state import ShareGroupStateResponse

# Kafka removed 4 to 7. The others are between Kafka's own nodes only.
NOT_SERVED = {4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}


def test_all_keys_of_kafkas_public_apis_are_in_the_table() -> None:
    assert {key for key, api in APIS.items() if not api.is_private} == set(range(95)) - NOT_SERVED
    assert set(APIS) == {int(key) for key in ApiKey}


def test_a_row_is_an_api() -> None:
    assert APIS[12] == Api(ApiKey.HEARTBEAT, 0, 4, 4, HeartbeatRequest)
    assert APIS[12].response is HeartbeatResponse
    assert APIS[12].name == "Heartbeat"


def test_keys_and_messages_have_the_same_names() -> None:
    for api in APIS.values():
        assert api.name.casefold() == api.key.name.replace("_", "").casefold()
        is_shared = api.response is ShareGroupStateResponse
        assert api.response.__name__ == f"{'ShareGroupState' if is_shared else api.name}Response"


def test_version_ranges_begin_with_the_first_version() -> None:
    since_one = {api.name for api in APIS.values() if api.min_version == 1}
    assert since_one == {
        "ShareGroupHeartbeat",
        "ShareGroupDescribe",
        "ShareFetch",
        "ShareAcknowledge",
        "ExplainGroup",
    }
    assert all(api.min_version == 0 for api in APIS.values() if api.name not in since_one)


def test_flexible_versions_have_newer_headers() -> None:
    metadata = APIS[ApiKey.METADATA]
    assert [metadata.request_header_version(v) for v in (0, 8, 9, 13)] == [1, 1, 2, 2]
    assert [metadata.response_header_version(v) for v in (0, 8, 9, 13)] == [0, 0, 1, 1]


def test_sasl_handshake_and_offset_delete_are_not_flexible() -> None:
    for key in (ApiKey.SASL_HANDSHAKE, ApiKey.OFFSET_DELETE):
        assert APIS[key].flexible_since is None
        assert APIS[key].request_header_version(1) == 1
        assert APIS[key].response_header_version(1) == 0


def test_responses_of_api_versions_have_header_version_0() -> None:
    """KIP-511: "the response header must remain at version 0"."""
    api = APIS[ApiKey.API_VERSIONS]
    assert [api.response_header_version(v) for v in range(6)] == [0] * 6
    assert api.request_header_version(3) == 2


def test_private_apis_have_keys_from_20001_and_are_flexible() -> None:
    private = [api for api in APIS.values() if api.is_private]
    assert private
    assert all(PRIVATE_KEY_MIN <= api.key < 1 << 15 for api in private)
    assert all(api.flexible_since == 0 for api in private)
