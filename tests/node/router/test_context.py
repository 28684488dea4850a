"""What handlers are given: requests apart from each other, services for all of them."""

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


def test_what_one_request_holds_no_other_does() -> None:
    first, second = context(), context()
    first.holds.append(object())
    assert second.holds == []


def test_a_client_that_has_not_said_who_it_is_is_anonymous() -> None:
    assert context().principal == "User:ANONYMOUS"


def test_a_request_without_a_frame_can_be_kept_and_dropped() -> None:
    """Coordinators make requests of their own: nothing of them lies in the arena."""
    request = context()
    request.retain()
    request.close()
    assert request.offset_of(request.frame) == request.arena_offset == 0


def test_a_context_takes_nothing_that_is_not_declared() -> None:
    with pytest.raises(AttributeError):
        context().tenant = "x"  # type: ignore[attr-defined]  # that is the point


def test_a_new_image_is_seen_by_whoever_asks_after_it(harness: RouterHarness) -> None:
    before = harness.services.image
    harness.controller.has("t", 1)
    harness.follow()
    assert "t" in harness.services.image.topics_by_name
    assert "t" not in before.topics_by_name


def test_no_state_of_a_request_is_among_the_services(harness: RouterHarness) -> None:
    assert vars(harness.services).keys() & set(RequestContext.__struct_fields__) == set()
