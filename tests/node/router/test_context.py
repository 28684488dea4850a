"""The arguments of handlers: a context for each request, services for all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.router.context import RequestContext
from tests.support.router_harness import RouterHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def context(**circumstances: object) -> RequestContext:
    return RequestContext(
        api_key=3,
        api_version=12,
        correlation_id=1,
        client_id=None,
        client_host="10.0.0.1",
        client_port=50_000,
        local_host="10.0.0.2",
        local_port=9092,
        listener_name="PLAINTEXT",
        **circumstances,  # type: ignore[arg-type]  # named by the tests
    )


def test_requests_do_not_share_what_they_hold() -> None:
    first, second = context(), context()
    first.holds.append(object())
    assert second.holds == []


def test_an_unauthenticated_client_is_anonymous() -> None:
    assert context().principal == "User:ANONYMOUS"


def test_a_request_without_a_frame_can_be_retained_and_closed() -> None:
    """Internal requests have no bytes in the arena."""
    request = context()
    request.retain()
    request.close()
    assert request.offset_of(request.frame) == request.arena_offset == 0


def test_a_context_has_only_declared_attributes() -> None:
    with pytest.raises(AttributeError):
        context().tenant = "x"  # type: ignore[attr-defined]  # that is the point


def test_services_return_the_newest_image(harness: RouterHarness) -> None:
    before = harness.services.image
    harness.controller.has("t", 1)
    harness.follow()
    assert "t" in harness.services.image.topics_by_name
    assert "t" not in before.topics_by_name


def test_services_and_requests_have_no_attribute_in_common(harness: RouterHarness) -> None:
    assert vars(harness.services).keys() & set(RequestContext.__struct_fields__) == set()
