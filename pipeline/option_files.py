"""Files that Kafka's client options name: certificates and keys.

Tasks of Spark run in other working directories than the program that has read the options, so
relative paths are made absolute there.
"""

import os
from collections.abc import Mapping
from typing import Final

FILE_OPTIONS: Final = frozenset(
    {
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.crl.location",
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.truststore.location",
    }
)
"""Without the prefix `kafka.`."""
_PROBE: Final = "probe"
"""librdkafka's word for the certificates of the system."""


def with_absolute_paths(kafka: Mapping[str, str]) -> dict[str, str]:
    """The options, their files by absolute paths; `~` is the home directory."""
    return {
        name: os.path.abspath(os.path.expanduser(value))
        if name in FILE_OPTIONS and value not in ("", _PROBE)
        else value
        for name, value in kafka.items()
    }
