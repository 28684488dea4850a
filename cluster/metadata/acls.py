"""Access control lists: what a binding says, all bindings as part of the metadata image, and what
they allow.

A binding allows or denies one principal from one host one operation on the resources that a pattern
names: one name, all names ("*"), or all that begin with a prefix (KIP-290). `AclsImage` never
changes; images that share it share its index. `evaluate` is Kafka's StandardAuthorizer: DENY beats
ALLOW, and what no binding is about is decided by the default. Super users are the caller's business
(node/router/authorizer.py).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec


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

# Of ALLOW bindings only: whoever is denied READ may still be allowed DESCRIBE.
_IMPLYING: Final[Mapping[int, frozenset[int]]] = {
    AclOperation.DESCRIBE: frozenset(
        {
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
        }
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset(
        {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}
    ),
}


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
        return (
            self.resource_type in (ANY, binding.resource_type)
            and self._matches_name(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (ANY, binding.operation)
            and self.permission_type in (PermissionType.ANY, binding.permission_type)
        )

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


class _Pattern(NamedTuple):
    """The resources of one type that a binding can be about."""

    resource_type: int
    pattern_type: int
    name: str


_Key = tuple[int, int, str]
"""A pattern; a plain tuple is looked up three times as fast as one that is made with names."""
_Entries = Mapping[str, tuple[AclBinding, ...]]
"""The bindings of one pattern, by principal."""
_LITERAL: Final = int(PatternType.LITERAL)
_PREFIXED: Final = int(PatternType.PREFIXED)
_ALLOW: Final = int(PermissionType.ALLOW)
_NO_ENTRIES: Final[_Entries] = MappingProxyType({})
_NO_PREFIXES: Final[Mapping[int, list[str]]] = MappingProxyType({})


class AclsImage:
    """All bindings, by pattern and principal; the prefixes that a name begins with are found by
    bisection. An evaluation costs about the same with ten bindings and with 100,000.
    """

    __slots__ = ("_count", "_entries", "_prefixes")

    def __init__(
        self,
        entries: Mapping[_Key, _Entries] = MappingProxyType({}),
        prefixes: Mapping[int, list[str]] = _NO_PREFIXES,
        count: int = 0,
    ) -> None:
        self._entries = entries
        self._prefixes = prefixes
        self._count = count

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
        entries = dict(self._entries)
        changed: dict[_Pattern, dict[str, tuple[AclBinding, ...]]] = {}
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
                    count += 1
                else:
                    after = tuple(each for each in before if each != binding)
                    if after:
                        by_principal[binding.principal] = after
                    else:
                        del by_principal[binding.principal]
                    count -= 1
        for pattern, by_principal in changed.items():
            if by_principal:
                entries[pattern] = by_principal
            else:
                entries.pop(pattern, None)
        return AclsImage(entries, self._prefixes_after(entries, changed), count)

    def _prefixes_after(
        self, entries: Mapping[_Key, _Entries], changed: Iterable[_Pattern]
    ) -> Mapping[int, list[str]]:
        prefixes = dict(self._prefixes)
        for pattern in changed:
            if pattern.pattern_type != PatternType.PREFIXED:
                continue
            is_there = pattern in entries
            if is_there == (pattern in self._entries):
                continue
            names = prefixes.get(pattern.resource_type, [])
            if names is self._prefixes.get(pattern.resource_type):
                names = list(names)
            prefixes[pattern.resource_type] = names
            if is_there:
                insort(names, pattern.name)
            else:
                del names[bisect_left(names, pattern.name)]
        return prefixes

    def matching(self, wanted: AclBindingFilter) -> list[AclBinding]:
        """The bindings that a filter finds, those of one pattern together."""
        name, pattern_type = wanted.resource_name, wanted.pattern_type
        if name is not None and wanted.resource_type != ANY and pattern_type != PatternType.ANY:
            if pattern_type == PatternType.MATCH:
                found = self._entries_about(wanted.resource_type, name)
            else:
                pattern = _Pattern(wanted.resource_type, pattern_type, name)
                found = iter([self._entries.get(pattern, _NO_ENTRIES)])
            candidates = (each for by in found for bindings in by.values() for each in bindings)
            return [each for each in candidates if wanted.matches(each)]
        return [each for each in self if wanted.matches(each)]

    def _entries_about(self, resource_type: int, name: str) -> Iterator[_Entries]:
        """The entries of every pattern that the resource matches."""
        entries = self._entries
        literal = entries.get((resource_type, _LITERAL, name))
        if literal is not None:
            yield literal
        if name != WILDCARD:
            wildcard = entries.get((resource_type, _LITERAL, WILDCARD))
            if wildcard is not None:
                yield wildcard
        names = self._prefixes.get(resource_type)
        if names:
            for prefix in _prefixes_of(name, names):
                yield entries[resource_type, _PREFIXED, prefix]

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
        is_allowed = is_found = False
        for by_principal in self._entries_about(resource_type, name):
            is_found = True
            for each in (principal, WILDCARD_PRINCIPAL):
                for binding in by_principal.get(each, ()):
                    if binding.host != WILDCARD and binding.host != host:
                        continue
                    if binding.permission_type == _ALLOW:
                        is_allowed = is_allowed or _allows(binding.operation, operation)
                    elif binding.operation in (AclOperation.ALL, operation):
                        return False
        return is_allowed if is_found else default

    def evaluate_any(
        self, principal: str, host: str, operation: int, resource_type: int, *, default: bool
    ) -> bool:
        """Whether the bindings allow the operation on at least one resource of that type.

        Kafka's Authorizer.authorizeByResourceType: an operation that implies another one does not
        count, and a DENY of a prefix counts against what begins with it.
        """
        if self.evaluate(principal, host, operation, resource_type, "hardcode", default=default):
            return True
        denied: set[tuple[int, str]] = set()
        allowed: set[tuple[int, str]] = set()
        for (about, pattern_type, name), by_principal in self._entries.items():
            if about != resource_type:
                continue
            for each in (principal, WILDCARD_PRINCIPAL):
                for binding in by_principal.get(each, ()):
                    if binding.host in (WILDCARD, host) and binding.operation in (
                        AclOperation.ALL,
                        operation,
                    ):
                        is_allow = binding.permission_type == PermissionType.ALLOW
                        (allowed if is_allow else denied).add((pattern_type, name))
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        if (PatternType.LITERAL, WILDCARD) in allowed:
            return True
        for pattern_type, name in allowed:
            if pattern_type == PatternType.LITERAL and (pattern_type, name) in denied:
                continue
            starts = (name[:length] for length in range(1, len(name) + 1))
            if not any((PatternType.PREFIXED, start) in denied for start in starts):
                return True
        return False


def _allows(allowed: int, operation: int) -> bool:
    if allowed in (AclOperation.ALL, operation):
        return True
    implying = _IMPLYING.get(operation)
    return implying is not None and allowed in implying


def _pattern_of(binding: AclBinding) -> _Pattern:
    return _Pattern(binding.resource_type, binding.pattern_type, binding.resource_name)


def _prefixes_of(name: str, prefixes: list[str]) -> Iterator[str]:
    """Those of the sorted `prefixes` that `name` begins with, the longest first."""
    start = name
    while True:
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
        if not start:
            return


def _common_length(one: str, other: str) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
