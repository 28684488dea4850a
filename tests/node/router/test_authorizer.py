"""The numbers of operations, and the bit field of authorized operations."""

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.node.router.authorizer import AuthorizableRequestContext, Authorizer
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS


class Client:
    principal = "User:ANONYMOUS"
    client_host = "127.0.0.1"


class AllowsOnly(Authorizer):
    """An authorizer with rules."""

    def __init__(self, *allowed: AclOperation) -> None:
        self._allowed = allowed

    def is_allowed(
        self,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
    ) -> bool:
        return operation in self._allowed


def test_everything_is_allowed_without_rules() -> None:
    authorizer = Authorizer()
    assert all(
        authorizer.is_allowed(Client(), operation, resource, "any")
        for operation in AclOperation
        for resource in ResourceType
    )


@pytest.mark.parametrize(
    ("resource", "name", "field"),
    [
        # What Kafka 4 answers to a client that may do everything.
        (ResourceType.TOPIC, "t", 3576),
        (ResourceType.GROUP, "g", 3400),
        (ResourceType.CLUSTER, CLUSTER_NAME, 8096),
    ],
)
def test_all_operations_of_a_resource_are_those_of_kafka(
    resource: ResourceType, name: str, field: int
) -> None:
    assert Authorizer().authorized_operations(Client(), resource, name) == field


def test_the_authorized_operations_field_has_a_bit_for_each_allowed_operation() -> None:
    authorizer = AllowsOnly(AclOperation.READ, AclOperation.DESCRIBE)
    field = authorizer.authorized_operations(Client(), ResourceType.TOPIC, "t")
    assert field == 1 << 3 | 1 << 8
    assert authorizer.authorized_operations(Client(), ResourceType.CLUSTER, "c") == 1 << 8


def test_no_allowed_operation_differs_from_not_requested() -> None:
    assert AllowsOnly().authorized_operations(Client(), ResourceType.TOPIC, "t") == 0
    assert NO_AUTHORIZED_OPERATIONS == -(2**31)
