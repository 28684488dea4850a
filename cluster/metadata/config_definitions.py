"""What a config key is: its type, default, bounds, where it can be set, and who enforces it.

The keys are declared as fields of settings classes (see `config_schema`) and listed in
`config_tables`. `config_layers` resolves values, `settings` gives them typed, `config_description`
describes them. Every key either is enforced by the module that it names, or is true by
construction, or is one of Kafka's that has no effect here and says so (`no_effect_configs`). Any
other key is refused as unknown. Values are texts until `parse` has typed them.
"""

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...]

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
BY_CONSTRUCTION: Final = "by construction"
"""In place of an enforcing module: the key is satisfied whatever its value."""
WITHOUT_EFFECT: Final = "without effect"
"""In place of an enforcing module: a key of Kafka's without effect here."""


class ConfigType(IntEnum):
    """The types of values, with the numbers that DescribeConfigs gives them (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from, with the numbers of the wire."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigScope(Enum):
    """How a broker's key may be changed while it runs. Topic and group keys always may."""

    READ_ONLY = "read-only"
    """Only in the broker's own configuration, with a restart."""
    CLUSTER = "cluster"
    """For all brokers together (the broker named ""), because they must agree."""
    BROKER = "broker"
    """For all brokers together or for one."""
    PER_BROKER = "per broker"
    """For one broker, or in its own configuration."""
    ONE_BROKER = "one broker"
    """For one broker, and only while it runs: the other brokers act upon the value, and they do not
    know this broker's own configuration."""


class ConfigError(ValueError):
    """A value that a key cannot have; the message is that of Kafka's ConfigException."""


def config_text(value: ConfigValue | None) -> str | None:
    """A typed value as Kafka writes it."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case float():
            # Java writes 1.5E10.
            return str(value).replace("e+", "E").replace("e-", "E-")
        case _:
            return str(value)


def invalid_value(name: str, value: ConfigValue, reason: str) -> ConfigError:
    """The error with Kafka's text. `value` is the text as it was set, or the typed value."""
    text = f"[{', '.join(value)}]" if isinstance(value, tuple) else config_text(value)
    return ConfigError(f"Invalid value {text} for configuration {name}: {reason}")


Validator: TypeAlias = Callable[[str, ConfigValue], None]
"""Raises ConfigError unless the key of that name may have the typed value."""


class ConfigSynonym(NamedTuple):
    """A broker's key that gives the default of another key; its unit is `factor` times as large."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One key of one type of resource.

    `default` is the text used if neither the key nor one of its synonyms is set, null if there is
    none. `synonyms` are the broker's keys that are used next, in that order. `bounds` are
    the broker's keys for the least and the greatest value of a group's key.
    """

    name: str
    type: ConfigType
    default: str | None
    documentation: str
    enforced_by: str
    validator: Validator | None = None
    scope: ConfigScope = ConfigScope.BROKER
    synonyms: tuple[ConfigSynonym, ...] = ()
    bounds: tuple[str | None, str | None] = (None, None)

    @property
    def has_effect(self) -> bool:
        """Whether anything depends on the key; False for Kafka's keys that mean nothing here."""
        return self.enforced_by != WITHOUT_EFFECT

    @property
    def is_sensitive(self) -> bool:
        """Whether the value must not be shown."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> ConfigValue:
        """The typed value of a text; ConfigError if the key cannot have it. The error does not show
        a value that must not be shown."""
        try:
            value = _typed(self.name, self.type, text)
            if self.validator is not None:
                self.validator(self.name, value)
        except ConfigError as error:
            if self.is_sensitive and text.strip() in str(error):
                reason = "It is secret, and not valid for this key"
                raise invalid_value(self.name, "[hidden]", reason) from None
            raise error
        return value


Definitions: TypeAlias = Mapping[str, ConfigDefinition]


# -- validators -------------------------------------------------------------------------------


def between(low: float, high: float) -> Validator:
    """A number of [low, high], both ends included."""

    def check(name: str, value: ConfigValue) -> None:
        assert isinstance(value, int | float)
        if value < low:
            raise invalid_value(name, value, f"Value must be at least {low}")
        if value > high:
            raise invalid_value(name, value, f"Value must be no more than {high}")

    return check


def at_least(low: float) -> Validator:
    """A number not below `low`."""
    return between(low, math.inf)


def one_of(*texts: str) -> Validator:
    """One of some words, spelled exactly; of a list, every item."""

    def check(name: str, value: ConfigValue) -> None:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in texts:
                raise invalid_value(name, item, f"String must be one of: {', '.join(texts)}")

    return check


def satisfying(reason: str, holds: Callable[[ConfigValue], bool]) -> Validator:
    """A value for which `holds` is true; `reason` says which those are."""

    def check(name: str, value: ConfigValue) -> None:
        if not holds(value):
            raise invalid_value(name, value, reason)

    return check


# -- texts to values ---------------------------------------------------------------------------

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_BITS: Final = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}


def _typed(name: str, config_type: ConfigType, text: str) -> ConfigValue:
    trimmed = text.strip()
    match config_type:
        case ConfigType.BOOLEAN:
            if trimmed.lower() in ("true", "false"):
                return trimmed.lower() == "true"
            raise invalid_value(name, text, "Expected value to be either true or false")
        case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
            limit = 1 << _BITS[config_type]
            if _WHOLE_NUMBER.match(trimmed) and -limit <= int(trimmed) < limit:
                return int(trimmed)
        case ConfigType.DOUBLE:
            with suppress(ValueError):
                number = float(trimmed)
                if "_" not in trimmed and not math.isnan(number):
                    return number
        case ConfigType.LIST:
            # As in Kafka 4.3 an item that stands there twice counts once (KIP-1161).
            items = tuple(dict.fromkeys(item.strip() for item in trimmed.split(",")))
            if not trimmed:
                return ()
            if not all(items):
                raise ConfigError(f"Configuration '{name}' values must not be empty.")
            return items
        case _:
            return trimmed
    raise invalid_value(name, text, f"Not a number of type {config_type.name}")
