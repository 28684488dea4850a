"""A client that may do nothing: its requests are answered, in every version of every API.

A handler may raise ApiError for the whole request only where the version has a field for it:
without one the dispatcher closes the connection.
"""

from collections.abc import Iterator
from random import Random

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.router.authorizer import AuthorizableRequestContext, Authorizer
from odradek.node.router.context import RequestContext
from odradek.node.router.dispatch import HANDLERS, error_response
from odradek.protocol.apis import APIS, Api
from odradek.protocol.codec import encode_response
from odradek.protocol.errors import ApiError
from odradek.protocol.messages.cluster import ElectLeadersRequest
from odradek.protocol.messages.produce import ProduceRequest
from tests.support.group_harness import GroupHarness
from tests.support.message_samples import random_message

REQUESTS_OF_A_VERSION = 8


class DenyAllAuthorizer(Authorizer):
    """Denies every operation."""

    def is_allowed(
        self,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
    ) -> bool:
        return False

    def is_any_allowed(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource: ResourceType
    ) -> bool:
        return False


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path_factory.mktemp("denials")) as harness:
        harness.services.authorizer = DenyAllAuthorizer()
        yield harness


def context_of(api: Api, version: int) -> RequestContext:
    return RequestContext(
        api_key=api.key,
        api_version=version,
        correlation_id=1,
        client_id="test",
        client_host="127.0.0.1",
        client_port=50_000,
        local_host="127.0.0.1",
        local_port=9092,
        listener_name="PLAINTEXT",
    )


def has_no_response(request: object, version: int) -> bool:
    """Produce with acks=0, and ElectLeaders v0 for all partitions, which can carry no error."""
    if isinstance(request, ProduceRequest):
        return request.acks == 0
    return (
        isinstance(request, ElectLeadersRequest)
        and version == 0
        and request.topic_partitions is None
    )


@pytest.mark.parametrize("api", [APIS[key] for key in HANDLERS], ids=lambda api: api.name)
def test_a_denied_request_is_answered_in_every_version(harness: GroupHarness, api: Api) -> None:
    async def respond(request: object, version: int) -> object:
        try:
            return await HANDLERS[api.key](request, context_of(api, version), harness.services)
        except ApiError as error:
            return error_response(api, version, error)

    for version in range(api.min_version, api.max_version + 1):
        random = Random(f"{api.name} {version}")
        for _ in range(REQUESTS_OF_A_VERSION):
            request = random_message(random, api.request, version)
            response = harness.loop.run_until_complete(respond(request, version))
            assert (response is None) == has_no_response(request, version), (version, request)
            if response is not None:
                encode_response(api.key, version, response)
