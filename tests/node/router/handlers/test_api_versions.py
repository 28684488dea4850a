"""ApiVersions in every version (B.3)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.features import SUPPORTED_FEATURES
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.node.router.handlers.api_versions import handle_api_versions, unsupported_api_versions
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import decode_response, encode_response
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from tests.support.router_harness import RouterHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def ask(
    harness: RouterHarness,
    version: int = 5,
    name: str = "client",
    software: str = "1.0",
    **more: object,
) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=software)
    for field, value in more.items():
        setattr(request, field, value)
    return harness.call(handle_api_versions, request, version)


@pytest.mark.parametrize("version", range(6))
def test_every_version_lists_the_served_apis(harness: RouterHarness, version: int) -> None:
    harness.services.served_apis = (ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.API_VERSIONS)
    response = ask(harness, version)
    assert response.error_code == ErrorCode.NONE
    assert [(api.api_key, api.min_version, api.max_version) for api in response.api_keys] == [
        (key, APIS[key].min_version, APIS[key].max_version)
        for key in (ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.API_VERSIONS)
    ]


def test_private_apis_are_not_advertised(harness: RouterHarness) -> None:
    harness.services.served_apis = (ApiKey.METADATA, ApiKey.REWIND_GROUP)
    assert [api.api_key for api in ask(harness).api_keys] == [ApiKey.METADATA]


def test_produce_is_served_from_version_0(harness: RouterHarness) -> None:
    # KAFKA-18659: librdkafka breaks if it is not.
    produce = next(api for api in ask(harness).api_keys if api.api_key == ApiKey.PRODUCE)
    assert produce.min_version == 0


@pytest.mark.parametrize(
    ("name", "software"),
    [("-a", "1"), ("a", ""), ("", "1"), ("a b", "1"), ("a", "1-"), ("a\n", "1"), ("ä", "1")],
)
def test_an_invalid_software_name_or_version_is_an_invalid_request(
    harness: RouterHarness, name: str, software: str
) -> None:
    response = ask(harness, 3, name, software)
    assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize("name", ["a", "apache-kafka-java", "librdkafka", "A.1-b"])
def test_names_of_real_clients_are_valid(harness: RouterHarness, name: str) -> None:
    assert ask(harness, 3, name, "2.6.0-rc1").error_code == ErrorCode.NONE


def test_software_names_are_not_checked_before_version_3(harness: RouterHarness) -> None:
    assert ask(harness, 2, "", "").error_code == ErrorCode.NONE


def test_features_whose_range_begins_at_0_are_hidden_from_version_3(harness: RouterHarness) -> None:
    # KAFKA-17011
    names = [[f.name for f in ask(harness, version).supported_features] for version in (3, 4)]
    assert names == [
        ["metadata.version"],
        [feature.name for feature in SUPPORTED_FEATURES],
    ]


def test_a_disabled_feature_is_not_finalized(harness: RouterHarness) -> None:
    for level in (1, 0):
        harness.controller.write(FeatureLevelChanged("test.version", level))
        harness.follow()
        names = [feature.name for feature in ask(harness).finalized_features]
        assert names == ["test.version"] * level


def test_finalized_features_have_the_metadata_offset_as_epoch(harness: RouterHarness) -> None:
    harness.controller.write(FeatureLevelChanged("metadata.version", 3))
    harness.follow()
    response = ask(harness)
    assert response.finalized_features_epoch == harness.image.offset
    (feature,) = response.finalized_features
    assert (feature.name, feature.min_version_level, feature.max_version_level) == (
        "metadata.version",
        3,
        3,
    )


@pytest.mark.parametrize(
    ("cluster", "node", "code"),
    [
        (None, -1, ErrorCode.NONE),
        ("cluster", 0, ErrorCode.NONE),
        ("other", -1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, 7, ErrorCode.REBOOTSTRAP_REQUIRED),
    ],
)
def test_a_client_of_another_cluster_or_node_must_rebootstrap(
    harness: RouterHarness, cluster: str | None, node: int, code: ErrorCode
) -> None:
    # KIP-1242
    assert ask(harness, 5, cluster_id=cluster, node_id=node).error_code == code


def test_an_unsupported_version_gets_a_version_0_response_with_the_served_range(
    harness: RouterHarness,
) -> None:
    # KIP-511
    response = unsupported_api_versions()
    sent = b"".join(encode_response(ApiKey.API_VERSIONS, 0, response))
    answer = decode_response(ApiKey.API_VERSIONS, 0, sent)
    assert isinstance(answer, ApiVersionsResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    (entry,) = answer.api_keys
    assert (entry.api_key, entry.min_version, entry.max_version) == (18, 0, 5)
