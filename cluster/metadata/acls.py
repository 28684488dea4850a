"""Access control lists: what a binding says, all bindings as part of the metadata image, and what
they allow.

A binding allows or denies one principal from one host one operation on the resources that a pattern
names: one name, all names ("*"), or all that begin with a prefix (KIP-290). `AclsImage` never
changes; images that share it share its index. `evaluate` is Kafka's StandardAuthorizer: DENY beats
ALLOW, and what no binding is about is decided by the default. Super users are the caller's business
(node/router/authorizer.py).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import compress
from operator import not_
from types import MappingProxyType
from typing import Final

import msgspec

from odradek.cluster.metadata.sharded_map import ShardedMap


class AclOperation(IntEnum):
    """ACL operations, numbered as on the wire. 0 is unknown, 1 stands for any in filters."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """ACL resource types, numbered as on the wire. 0 is unknown, 1 stands for any in filters."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a pattern's name is meant; ANY and MATCH are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class PermissionType(IntEnum):
    """What a binding does; ANY is for filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


ANY: Final = 1
"""In filters: resources and operations of every type."""
UNKNOWN: Final = 0
WILDCARD: Final = "*"
"""A literal pattern for all names, and every host."""
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""

_ALL: Final = int(AclOperation.ALL)
# Of ALLOW bindings only: whoever is denied READ may still be allowed DESCRIBE.
_IMPLYING: Final[Mapping[int, tuple[AclOperation, ...]]] = {
    AclOperation.DESCRIBE: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
_ALLOWING: Final[Mapping[int, frozenset[int]]] = {
    each: frozenset({_ALL, each, *_IMPLYING.get(each, ())}) for each in AclOperation
}
"""The operations of ALLOW bindings by which each operation is allowed."""


class AclBinding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One access control entry and the pattern of the resources that it is about.

    The struct travels inside records: fields may only be added at the end, with a default.
    """

    resource_type: int
    pattern_type: int
    resource_name: str
    principal: str
    host: str
    operation: int
    permission_type: int


class AclBindingFilter(msgspec.Struct, frozen=True, array_like=True):
    """The bindings that have these values; 1 and null stand for any.

    The pattern type MATCH finds what is about resources of that name: literal, "*" and prefixes.
    """

    resource_type: int = ANY
    pattern_type: int = PatternType.ANY
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission_type: int = PermissionType.ANY

    def matches(self, binding: AclBinding) -> bool:
        """Whether the binding is one of these."""
        return bool(self.among([binding]))

    def among(self, bindings: list[AclBinding]) -> list[AclBinding]:
        """Those of the bindings that are meant. What the filter leaves open costs nothing."""
        found = bindings
        if self.resource_type != ANY:
            found = [each for each in found if each.resource_type == self.resource_type]
        if self.principal is not None:
            found = [each for each in found if each.principal == self.principal]
        if self.host is not None:
            found = [each for each in found if each.host == self.host]
        if self.operation != ANY:
            found = [each for each in found if each.operation == self.operation]
        if self.permission_type != PermissionType.ANY:
            found = [each for each in found if each.permission_type == self.permission_type]
        if self.resource_name is not None or self.pattern_type > PatternType.MATCH:
            found = [each for each in found if self._matches_name(each)]
        return found

    def _matches_name(self, binding: AclBinding) -> bool:
        wanted, name = self.resource_name, binding.resource_name
        if self.pattern_type == PatternType.MATCH:
            if wanted is None or wanted == name:
                return True
            if binding.pattern_type == PatternType.PREFIXED:
                return wanted.startswith(name)
            return name == WILDCARD
        if self.pattern_type not in (PatternType.ANY, binding.pattern_type):
            return False
        return wanted in (None, name)


_Key = tuple[int, int, str]
"""A pattern: resource type, pattern type, name."""
_Right = tuple[int, int, int, str]
"""Resource type, operation, permission type, principal."""
_Entries = Mapping[str, tuple[AclBinding, ...]]
"""The bindings of one pattern, by principal."""
_Chain = tuple[str, _Entries, "_Chain | None"]
"""A prefix, its bindings, and the same of the longest other prefix that it begins with."""
_LITERAL: Final = int(PatternType.LITERAL)
_PREFIXED: Final = int(PatternType.PREFIXED)
_ALLOW: Final = int(PermissionType.ALLOW)
_DENY: Final = int(PermissionType.DENY)
_NO_ENTRIES: Final[_Entries] = MappingProxyType({})
_PIECE_SIZE: Final = 500
"""How many bindings a search looks at between two results: a fraction of a millisecond."""


class AclsImage:
    """All bindings: by pattern and principal; by principal and what it is allowed or denied; and
    the prefixes in order. An evaluation costs about the same with ten bindings and with 100,000.
    """

    __slots__ = ("_chains", "_count", "_entries", "_prefixes", "_rights")

    def __init__(self) -> None:
        """Without bindings. `after` makes all others."""
        self._entries: ShardedMap[_Key, _Entries] = ShardedMap()
        self._rights: ShardedMap[_Right, tuple[AclBinding, ...]] = ShardedMap()
        self._prefixes: Mapping[int, list[str]] = MappingProxyType({})
        self._count = 0
        # Filled by evaluations.
        self._chains: dict[tuple[int, str], _Chain] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[AclBinding]:
        """All bindings, those of one pattern together."""
        for by_principal in self._entries.values():
            for bindings in by_principal.values():
                yield from bindings

    def __contains__(self, binding: AclBinding) -> bool:
        entries = self._entries.get(_pattern_of(binding), _NO_ENTRIES)
        return binding in entries.get(binding.principal, ())

    def after(self, added: Iterable[AclBinding], removed: Iterable[AclBinding] = ()) -> "AclsImage":
        """These bindings with some added and, before that, some removed. What is already there, or
        is not there, changes nothing."""
        entries = self._entries
        changed: dict[_Key, dict[str, tuple[AclBinding, ...]]] = {}
        gained: dict[_Right, list[AclBinding]] = {}
        lost: dict[_Right, set[int]] = {}
        count = self._count
        for bindings, is_addition in ((removed, False), (added, True)):
            for binding in bindings:
                pattern = _pattern_of(binding)
                by_principal = changed.get(pattern)
                if by_principal is None:
                    by_principal = changed[pattern] = dict(entries.get(pattern, _NO_ENTRIES))
                before = by_principal.get(binding.principal, ())
                if (binding in before) is is_addition:
                    continue
                if is_addition:
                    by_principal[binding.principal] = (*before, binding)
                    gained.setdefault(_right_of(binding), []).append(binding)
                    count += 1
                else:
                    at = before.index(binding)
                    # The tuples of a right have the same objects, which are compared faster.
                    lost.setdefault(_right_of(binding), set()).add(id(before[at]))
                    after = before[:at] + before[at + 1 :]
                    if after:
                        by_principal[binding.principal] = after
                    else:
                        del by_principal[binding.principal]
                    count -= 1
        result = AclsImage()
        result._entries = entries.after({key: value or None for key, value in changed.items()})
        result._rights = self._rights_after(gained, lost)
        result._prefixes = self._prefixes_after(changed)
        result._count = count
        return result

    def _rights_after(
        self, gained: Mapping[_Right, list[AclBinding]], lost: Mapping[_Right, set[int]]
    ) -> ShardedMap[_Right, tuple[AclBinding, ...]]:
        rights = self._rights
        changed: dict[_Right, tuple[AclBinding, ...] | None] = {}
        for right, ids in lost.items():
            changed[right] = _without(rights[right], ids) or None
        for right, bindings in gained.items():
            before = changed[right] if right in changed else rights.get(right)
            changed[right] = (*(before or ()), *bindings)
        return rights.after(changed)

    def _prefixes_after(
        self, changed: Mapping[_Key, Mapping[str, tuple[AclBinding, ...]]]
    ) -> Mapping[int, list[str]]:
        names_changed: dict[int, list[str]] = {}
        for pattern, by_principal in changed.items():
            resource_type, pattern_type, name = pattern
            if pattern_type == _PREFIXED and bool(by_principal) != (pattern in self._entries):
                names_changed.setdefault(resource_type, []).append(name)
        if not names_changed:
            return self._prefixes
        prefixes = dict(self._prefixes)
        for resource_type, names in names_changed.items():
            prefixes[resource_type] = _toggled(prefixes.get(resource_type, []), names)
        return prefixes

    def matching(self, wanted: AclBindingFilter) -> list[AclBinding]:
        """The bindings that a filter finds."""
        return [each for piece in self.search(wanted) for each in piece]

    def search(self, wanted: AclBindingFilter) -> Iterator[list[AclBinding]]:
        """What `matching` finds, in pieces of which each takes less than a millisecond: for callers
        that leave turns to others. Many pieces are empty."""
        gathered: list[AclBinding] = []
        for bindings in self._candidates(wanted):
            gathered += bindings
            if len(gathered) >= _PIECE_SIZE:
                for start in range(0, len(gathered), _PIECE_SIZE):
                    yield wanted.among(gathered[start : start + _PIECE_SIZE])
                gathered = []
        yield wanted.among(gathered)

    def _candidates(self, wanted: AclBindingFilter) -> Iterator[tuple[AclBinding, ...]]:
        """Tuples that have all that the filter finds, and as little else as the indexes allow."""
        kinds = tuple(ResourceType) if wanted.resource_type == ANY else (wanted.resource_type,)
        principal = wanted.principal
        if wanted.resource_name is not None:
            for by_principal in self._named(kinds, wanted.pattern_type, wanted.resource_name):
                if principal is None:
                    yield from by_principal.values()
                elif principal in by_principal:
                    yield by_principal[principal]
        elif principal is not None:
            for kind in kinds:
                for operation in AclOperation:
                    for permission in (_DENY, _ALLOW):
                        yield self._rights.get((kind, operation, permission, principal), ())
        else:
            for by_principal in self._entries.values():
                yield from by_principal.values()

    def _named(self, kinds: Iterable[int], pattern_type: int, name: str) -> Iterator[_Entries]:
        for kind in kinds:
            if pattern_type == PatternType.MATCH:
                yield from self._entries_about(kind, name)
                continue
            for each in (_LITERAL, _PREFIXED):
                if pattern_type in (PatternType.ANY, each):
                    yield self._entries.get((kind, each, name), _NO_ENTRIES)

    def _entries_about(self, resource_type: int, name: str) -> list[_Entries]:
        """The entries of every pattern that the resource matches."""
        entries = self._entries
        found = []
        literal = entries.get((resource_type, _LITERAL, name))
        if literal is not None:
            found.append(literal)
        if name != WILDCARD:
            wildcard = entries.get((resource_type, _LITERAL, WILDCARD))
            if wildcard is not None:
                found.append(wildcard)
        prefixes = self._prefixes.get(resource_type)
        if prefixes:
            # Of all prefixes that are not after the name, the last one begins with every prefix
            # that the name begins with.
            at = bisect_right(prefixes, name) - 1
            if at >= 0:
                last = prefixes[at]
                chain = self._chains.get((resource_type, last))
                if chain is None:
                    chain = self._new_chain(resource_type, last)
                while chain is not None:
                    prefix, by_principal, chain = chain
                    if name.startswith(prefix):
                        found.append(by_principal)
        return found

    def _new_chain(self, resource_type: int, name: str) -> _Chain | None:
        """Of all prefixes that `name`, itself a prefix, begins with."""
        chain: _Chain | None = None
        unknown = []
        for prefix in _prefixes_of(name, self._prefixes[resource_type]):
            chain = self._chains.get((resource_type, prefix))
            if chain is not None:
                break
            unknown.append(prefix)
        for prefix in reversed(unknown):
            by_principal = self._entries[resource_type, _PREFIXED, prefix]
            chain = self._chains[resource_type, prefix] = (prefix, by_principal, chain)
        return chain

    def evaluate(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: int,
        name: str,
        *,
        default: bool,
    ) -> bool:
        """Whether the bindings allow the operation on the named resource.

        `default` is the answer if no binding at all is about the resource, whoever it names.
        """
        found = self._entries_about(resource_type, name)
        if not found:
            return default
        is_allowed = False
        allowing = _ALLOWING[operation]
        for by_principal in found:
            for each in (principal, WILDCARD_PRINCIPAL):
                for binding in by_principal.get(each, ()):
                    if binding.host != WILDCARD and binding.host != host:
                        continue
                    if binding.permission_type == _ALLOW:
                        is_allowed = is_allowed or binding.operation in allowing
                    elif binding.operation in (_ALL, operation):
                        return False
        return is_allowed

    def evaluate_any(
        self, principal: str, host: str, operation: int, resource_type: int, *, default: bool
    ) -> bool:
        """Whether the bindings allow the operation on at least one resource of that type.

        Kafka's Authorizer.authorizeByResourceType: an operation that implies another one does not
        count, and a DENY of a prefix counts against what begins with it.
        """
        if self.evaluate(principal, host, operation, resource_type, "hardcode", default=default):
            return True
        denied = {
            (binding.pattern_type, binding.resource_name)
            for binding in self._having(principal, host, operation, resource_type, _DENY)
        }
        if (_LITERAL, WILDCARD) in denied:
            return False
        prefixes = _shortest_prefixes(name for kind, name in denied if kind == _PREFIXED)
        for binding in self._having(principal, host, operation, resource_type, _ALLOW):
            name = binding.resource_name
            if binding.pattern_type == _LITERAL:
                if name == WILDCARD:
                    return True
                if (_LITERAL, name) in denied:
                    continue
            at = bisect_right(prefixes, name) - 1
            if at < 0 or not name.startswith(prefixes[at]):
                return True
        return False

    def _having(
        self, principal: str, host: str, operation: int, resource_type: int, permission: int
    ) -> Iterator[AclBinding]:
        """The bindings that allow, or deny, the principal just that operation, or all."""
        for who in (principal, WILDCARD_PRINCIPAL):
            for what in (operation, _ALL):
                for binding in self._rights.get((resource_type, what, permission, who), ()):
                    if binding.host in (WILDCARD, host):
                        yield binding


def _pattern_of(binding: AclBinding) -> _Key:
    return binding.resource_type, binding.pattern_type, binding.resource_name


def _right_of(binding: AclBinding) -> _Right:
    return binding.resource_type, binding.operation, binding.permission_type, binding.principal


def _without(bindings: tuple[AclBinding, ...], ids: set[int]) -> tuple[AclBinding, ...]:
    """Without the objects of these identities."""
    if len(bindings) == len(ids):
        return ()
    identities = list(map(id, bindings))
    if len(ids) == 1:
        at = identities.index(*ids)
        return bindings[:at] + bindings[at + 1 :]
    return tuple(compress(bindings, map(not_, map(ids.__contains__, identities))))


def _toggled(names: list[str], changed: list[str]) -> list[str]:
    """The sorted names, with those of `changed` removed that are there, and the others added."""
    result: list[str] = []
    start = 0
    for name in sorted(changed):
        at = bisect_left(names, name, start)
        result += names[start:at]
        start = at
        if at < len(names) and names[at] == name:
            start += 1
        else:
            result.append(name)
    result += names[start:]
    return result


def _prefixes_of(name: str, prefixes: list[str]) -> Iterator[str]:
    """Those of the sorted `prefixes` that `name` begins with, the longest first."""
    start = name
    while start:
        # Of all that is not after `start`, the last one begins with every prefix of `start` there.
        at = bisect_right(prefixes, start) - 1
        if at < 0:
            return
        found = prefixes[at]
        if start.startswith(found):
            yield found
            start = found[:-1]
        else:
            start = start[: _common_length(start, found)]


def _shortest_prefixes(prefixes: Iterable[str]) -> list[str]:
    """In order, without those that begin with another one."""
    shortest: list[str] = []
    for each in sorted(prefixes):
        if not shortest or not each.startswith(shortest[-1]):
            shortest.append(each)
    return shortest


def _common_length(one: str, other: str) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
