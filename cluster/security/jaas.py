"""Kafka's JAAS configurations: a login module, a flag, and options (java.security's syntax).

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";

Errors never show a value: it may be a password. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

USER_PREFIX: Final = "user_"
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>\"(?:[^\"\\]|\\.)*\")|(?P<word>[^\s=;\"]+)|(?P<sign>[=;]))", re.DOTALL
)
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class JaasError(ValueError):
    """The text is no JAAS configuration."""


@dataclass(frozen=True, slots=True)
class JaasConfig:
    """A login module and its options."""

    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"JaasConfig({self.module})"

    @property
    def users(self) -> dict[str, str]:
        """The passwords of PlainLoginModule's users, by name."""
        return {
            name.removeprefix(USER_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(USER_PREFIX) and name != USER_PREFIX
        }


def parse_jaas(text: str) -> JaasConfig:
    """The one login module that the text configures. Raises JaasError."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise JaasError("it must be a login module, a flag and options, and end with a semicolon")
    (module, _), (flag, _), *rest = tokens[:-1]
    if flag.lower() not in _FLAGS:
        raise JaasError(f"after the login module one of {', '.join(sorted(_FLAGS))} must follow")
    if len(rest) % 3:
        raise JaasError('options must have the form name="value"')
    options = {}
    for at in range(0, len(rest), 3):
        (name, is_sign), equals, (value, is_value_sign) = rest[at : at + 3]
        if is_sign or is_value_sign or equals != ("=", True):
            raise JaasError('options must have the form name="value"')
        options[name] = value
    return JaasConfig(module, options)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """The words and signs; True for a sign."""
    text = text.strip()
    tokens = []
    at = 0
    while at < len(text):
        matched = _TOKEN.match(text, at)
        if matched is None:
            raise JaasError("a quotation mark has no counterpart")
        at = matched.end()
        if matched["quoted"] is not None:
            tokens.append((_ESCAPED.sub(r"\1", matched["quoted"][1:-1]), False))
        elif matched["word"] is not None:
            tokens.append((matched["word"], False))
        else:
            tokens.append((matched["sign"], True))
    return tokens
