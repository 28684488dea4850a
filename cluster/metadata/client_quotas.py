"""Client quotas: limits of users, client ids and IP addresses, and which of them holds for whom.

An entity is a user, a client id, a user with a client id, or an IP address; a component whose name
is null is the default, for all names without a quota of their own (KIP-13, KIP-55, KIP-546,
KIP-612). A `ClientQuotasImage` never changes. What it finds for a client it keeps, so that a
request costs one dictionary access as long as no quota changes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias


class QuotaEntityType(StrEnum):
    """The kinds of components of an entity, with the names of the wire."""

    CLIENT_ID = "client-id"
    IP = "ip"
    USER = "user"


class QuotaKey(StrEnum):
    """What can be limited, with Kafka's names.

    The byte rates and the mutation rate (partitions created or deleted, KIP-599) are per second.
    100 of the percentage is the time of one thread (KIP-124). The connection rate is of one IP
    address, in connections per second.
    """

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


CLIENT_QUOTA_KEYS: Final = (
    QuotaKey.PRODUCER_BYTE_RATE,
    QuotaKey.CONSUMER_BYTE_RATE,
    QuotaKey.REQUEST_PERCENTAGE,
    QuotaKey.CONTROLLER_MUTATION_RATE,
)
"""The keys of users and client ids."""

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""The components of an entity, as pairs of type and name, sorted by type. Null: the default."""

_CACHED_CLIENTS_MAX = 10_000
_NO_QUOTAS: Final[Mapping[str, float]] = MappingProxyType({})
_USER, _CLIENT_ID, _IP = QuotaEntityType.USER, QuotaEntityType.CLIENT_ID, QuotaEntityType.IP
_NO_ENTITIES: Final[Mapping[QuotaEntity, Mapping[str, float]]] = MappingProxyType({})


def quota_entity(components: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of these components."""
    return tuple(sorted(components, key=lambda component: component[0]))


class QuotaLimit(NamedTuple):
    """A limit that holds for a client, and with whom the client shares it.

    All clients with the same `user` and `client_id` share one rate. An empty string means that
    the quota does not depend on it: that of a user is shared by all client ids of the user.
    """

    user: str
    client_id: str
    value: float


class ClientLimits(NamedTuple):
    """The limits of one client, by key; null: none."""

    producer_byte_rate: QuotaLimit | None
    consumer_byte_rate: QuotaLimit | None
    request_percentage: QuotaLimit | None
    controller_mutation_rate: QuotaLimit | None


class ClientQuotasImage(Mapping[QuotaEntity, Mapping[str, float]]):
    """The quotas that were set, by entity and key."""

    __slots__ = ("_by_client", "_by_entity", "_key_counts", "connection_rates", "keys_of_clients")

    def __init__(self, by_entity: Mapping[QuotaEntity, Mapping[str, float]] = _NO_ENTITIES) -> None:
        self._by_entity: dict[QuotaEntity, Mapping[str, float]] = {}
        self._by_client: dict[tuple[str, str], ClientLimits] = {}
        self._key_counts: Counter[str] = Counter()
        self.keys_of_clients: frozenset[str] = frozenset()
        """The keys that are set for any user or client id. Empty: nobody has such a quota."""
        self.connection_rates: Mapping[str | None, float] = {}
        """Connections per second by address or host name; of null: the default of all others."""
        if by_entity:
            self._change(by_entity)

    def after(self, changes: Mapping[QuotaEntity, Mapping[str, float]]) -> "ClientQuotasImage":
        """This with the quotas of some entities replaced; empty ones are removed. Costs a copy of
        the entities, and nothing else for those that stay."""
        result = ClientQuotasImage()
        result._by_entity = self._by_entity.copy()
        result._key_counts = self._key_counts.copy()
        result.connection_rates = self.connection_rates
        result._change(changes)
        return result

    def _change(self, changes: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """While it is made."""
        counts, rates = self._key_counts, dict[str | None, float | None]()
        for entity, quotas in changes.items():
            before = self._by_entity.pop(entity, _NO_QUOTAS)
            if quotas:
                self._by_entity[entity] = quotas
            counts.subtract(before.keys())
            counts.update(quotas.keys())
            key = QuotaKey.CONNECTION_CREATION_RATE
            if key in before or key in quotas:
                rates[entity[0][1]] = quotas.get(key)
        self.keys_of_clients = frozenset(key for key in CLIENT_QUOTA_KEYS if counts[key])
        if rates:
            present = {**self.connection_rates, **rates}
            self.connection_rates = {
                name: rate for name, rate in present.items() if rate is not None
            }

    def __getitem__(self, entity: QuotaEntity) -> Mapping[str, float]:
        return self._by_entity[entity]

    def __iter__(self) -> Iterator[QuotaEntity]:
        return iter(self._by_entity)

    def __len__(self) -> int:
        return len(self._by_entity)

    def of(self, entity: QuotaEntity) -> Mapping[str, float]:
        """The quotas of one entity; empty if it has none."""
        return self._by_entity.get(entity, _NO_QUOTAS)

    def limits(self, user: str, client_id: str) -> ClientLimits:
        """The limits of a client; `user` is the name of its principal, without the type."""
        limits = self._by_client.get((user, client_id))
        if limits is None:
            limits = ClientLimits(*(self._limit(key, user, client_id) for key in CLIENT_QUOTA_KEYS))
            if len(self._by_client) >= _CACHED_CLIENTS_MAX:
                self._by_client.clear()
            self._by_client[user, client_id] = limits
        return limits

    def _limit(self, key: str, user: str, client_id: str) -> QuotaLimit | None:
        """The quota of the most specific entity that has this key, in Kafka's order.

        As in Kafka, a client without a client id is subject to the quotas of users only.
        """
        if key not in self.keys_of_clients:
            return None
        for entity, shared_by in _levels(user, client_id) if client_id else _levels_of_user(user):
            value = self.of(entity).get(key)
            if value is not None:
                return QuotaLimit(*shared_by, value)
        return None


def _levels(user: str, client_id: str) -> tuple[tuple[QuotaEntity, tuple[str, str]], ...]:
    """The entities that a client belongs to, the first to be looked at first, each with the user
    and client id that share its quota."""
    both = user, client_id
    return (
        (((_CLIENT_ID, client_id), (_USER, user)), both),
        (((_CLIENT_ID, None), (_USER, user)), both),
        (((_USER, user),), (user, "")),
        (((_CLIENT_ID, client_id), (_USER, None)), both),
        (((_CLIENT_ID, None), (_USER, None)), both),
        (((_USER, None),), (user, "")),
        (((_CLIENT_ID, client_id),), ("", client_id)),
        (((_CLIENT_ID, None),), ("", client_id)),
    )


def _levels_of_user(user: str) -> tuple[tuple[QuotaEntity, tuple[str, str]], ...]:
    return (((_USER, user),), (user, "")), (((_USER, None),), (user, ""))
