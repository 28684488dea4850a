"""CRC-32C, the checksum of record batches and of the files of this broker.

A C function with hardware support: 1 MB in 29 us, of any buffer without a copy. A second argument
continues from an earlier result. No other module imports the package.
"""

from crc32c import crc32c

__all__ = ["crc32c"]
