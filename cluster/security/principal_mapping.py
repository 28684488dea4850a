"""Kafka's ssl.principal.mapping.rules (KIP-371): from a certificate's subject to a principal.

A list of rules, separated by commas: `DEFAULT`, the whole distinguished name, or
`RULE:pattern/replacement/`, with `L` or `U` behind it for lower or upper case. The first rule whose
pattern matches the whole name gives the principal. Pure. One invariant: a name that no rule matches
has no principal. Called by node/wire/tls_context.py, and by the config key's validator.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from odradek.cluster.metadata.config_definitions import ConfigValue, invalid_value

_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER: Final = re.compile(_RULE)
# Java's (?<name>...) is Python's (?P<name>...).
_NAMED_GROUP: Final = re.compile(r"\(\?<(?![=!])")
_REPLACEMENT: Final = re.compile(r"\\(.)|\$(\d+)|\$\{(\w+)\}|(\$|\\$)", re.DOTALL)


class MappingRule(NamedTuple):
    """One rule; without a pattern it is DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The principal's name, or None if the rule does not match the whole of `name`."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(self._expand, name)
        if self.case == "L":
            return mapped.lower()
        return mapped.upper() if self.case == "U" else mapped

    def _expand(self, matched: re.Match[str]) -> str:
        """The replacement in Java's syntax: $1, ${name}, and a backslash before what is meant
        literally. The longest number that is a group counts; a reference to no group is literal."""
        count = matched.re.groups

        def value(reference: re.Match[str]) -> str:
            escaped, number, group, _ = reference.groups()
            if escaped is not None:
                return str(escaped)
            if group is not None:
                return matched.group(group) or ""
            if number is None:
                return reference[0]
            used = number
            while len(used) > 1 and int(used) > count:
                used = used[:-1]
            if int(used) > count:
                return reference[0]
            return (matched.group(int(used)) or "") + number[len(used) :]

        return _REPLACEMENT.sub(value, self.replacement)


@lru_cache(maxsize=64)
def mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """The rules of a config's value. Raises ValueError, with Kafka's text, for one that is none."""
    rules = []
    for split in _SPLITTER.finditer(text.strip()):
        rule = split[1]
        parsed = _PARSER.match(rule)
        if parsed is None or parsed.end() != len(rule):
            rest = rule if parsed is None else rule[parsed.end() :]
            raise ValueError(f"Invalid rule: `{rule}`, unmatched substring: `{rest}`")
        is_default, pattern, replacement, case, _ = parsed.groups()
        if is_default is not None:
            rules.append(MappingRule())
        elif pattern is not None:
            try:
                compiled = re.compile(_NAMED_GROUP.sub("(?P<", pattern))
            except re.error as error:
                raise ValueError(f"Invalid rule: `{rule}`: {error}") from error
            rules.append(_checked(MappingRule(compiled, replacement, case)))
    return tuple(rules)


def _checked(rule: MappingRule) -> MappingRule:
    for reference in _REPLACEMENT.finditer(rule.replacement):
        assert rule.pattern is not None
        named = reference[3]
        if named is not None and named not in rule.pattern.groupindex:
            raise ValueError(f"Invalid rule: there is no group named {named}")
    return rule


def principal_of(subject: str, rules: str) -> str | None:
    """`User:name` of a certificate with this subject; None if no rule applies to it."""
    for rule in mapping_rules(rules):
        name = rule.apply(subject)
        if name is not None:
            return f"User:{name}"
    return None


def check_mapping_rules(name: str, value: ConfigValue) -> None:
    """The validator of the config key; raises ConfigError."""
    try:
        mapping_rules(str(value))
    except ValueError as error:
        raise invalid_value(name, value, str(error)) from error
