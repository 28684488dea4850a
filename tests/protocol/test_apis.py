from odradek.protocol.apis import APIS, PRIVATE_KEY_MIN, Api, ApiKey
from odradek.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.share_state import ShareGroupStateResponse

# Keys 4-7 were removed from Kafka; the others are spoken among Kafka's own nodes only.
NOT_OURS = {4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}


def test_all_public_keys_are_there() -> None:
    assert {key for key, api in APIS.items() if not api.is_private} == set(range(95)) - NOT_OURS
    assert set(APIS) == {int(key) for key in ApiKey}


def test_a_row_says_what_an_api_is() -> None:
    assert APIS[12] == Api(ApiKey.HEARTBEAT, 0, 4, 4, HeartbeatRequest)
    assert APIS[12].response is HeartbeatResponse
    assert APIS[12].name == "Heartbeat"


def test_names_of_keys_and_messages_agree() -> None:
    for api in APIS.values():
        assert api.name.casefold() == api.key.name.replace("_", "").casefold()
        is_shared = api.response is ShareGroupStateResponse
        assert api.response.__name__ == f"{'ShareGroupState' if is_shared else api.name}Response"


def test_ranges_begin_with_the_first_version_that_ever_was() -> None:
    since_one = {api.name for api in APIS.values() if api.min_version == 1}
    assert since_one == {
        "ShareGroupHeartbeat",
        "ShareGroupDescribe",
        "ShareFetch",
        "ShareAcknowledge",
        "ExplainGroup",
    }
    assert all(api.min_version == 0 for api in APIS.values() if api.name not in since_one)


def test_headers_grow_with_the_first_flexible_version() -> None:
    metadata = APIS[ApiKey.METADATA]
    assert [metadata.request_header_version(v) for v in (0, 8, 9, 13)] == [1, 1, 2, 2]
    assert [metadata.response_header_version(v) for v in (0, 8, 9, 13)] == [0, 0, 1, 1]


def test_sasl_handshake_and_offset_delete_never_became_flexible() -> None:
    for key in (ApiKey.SASL_HANDSHAKE, ApiKey.OFFSET_DELETE):
        assert APIS[key].flexible_since is None
        assert APIS[key].request_header_version(1) == 1
        assert APIS[key].response_header_version(1) == 0


def test_api_versions_answers_with_the_oldest_header_in_every_version() -> None:
    """KIP-511: "the response header must remain at version 0"."""
    api = APIS[ApiKey.API_VERSIONS]
    assert [api.response_header_version(v) for v in range(6)] == [0] * 6
    assert api.request_header_version(3) == 2


def test_our_own_apis_are_far_from_kafkas_and_flexible_from_the_first_version() -> None:
    private = [api for api in APIS.values() if api.is_private]
    assert private
    assert all(PRIVATE_KEY_MIN <= api.key < 1 << 15 for api in private)
    assert all(api.flexible_since == 0 for api in private)
