"""Who is taken for a member, and whose an instance id is."""

import pytest

from odradek.coordinator.group.modern.member_checks import (
    check_instance_id,
    epoch_mismatch,
    fenced_epoch,
    unknown_member,
)
from odradek.protocol.errors import ApiError, ErrorCode


class Shelf:
    """A group in which "shelf" belongs to m."""

    group_id = "g"

    def member(self, member_id: str) -> object | None:
        return self if member_id == "m" else None

    def static_member_id(self, instance_id: str) -> str | None:
        return {"shelf": "m"}.get(instance_id)


@pytest.mark.parametrize("instance_id", [None, "shelf"])
def test_a_member_may_have_an_instance_id_of_its_own_or_none(instance_id: str | None) -> None:
    check_instance_id(Shelf(), "m", instance_id)


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("m", "table", ErrorCode.UNKNOWN_MEMBER_ID),
        ("n", "shelf", ErrorCode.FENCED_INSTANCE_ID),
    ],
    ids=["nobody's", "another one's"],
)
def test_who_claims_another_instance_id_is_refused(
    member_id: str, instance_id: str, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as refused:
        check_instance_id(Shelf(), member_id, instance_id)
    assert refused.value.code == code


def test_who_is_not_known_is_told_in_which_group() -> None:
    error = unknown_member("g", "m")
    assert error.code == ErrorCode.UNKNOWN_MEMBER_ID
    assert error.message == "Member m is not a member of group g."


@pytest.mark.parametrize(("epoch", "how"), [(7, "greater"), (3, "smaller")])
def test_who_names_another_epoch_is_told_which_and_what_to_do(epoch: int, how: str) -> None:
    error = fenced_epoch("consumer", "partitions", epoch_mismatch(epoch, 5))
    assert error.code == ErrorCode.FENCED_MEMBER_EPOCH
    assert error.message == (
        f"The consumer group member has a {how} member epoch ({epoch}) than the one known by the"
        " group coordinator (5). The member must abandon all its partitions and rejoin."
    )
