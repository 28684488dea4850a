"""A Kafka-wire-compatible broker cluster: one name in site-packages.

The packages below this one are the floors of ARCHITECTURE.md. In the repository they are folders
at its top, and links here; an installed Odradek has them here as files.
"""

__version__ = "0.2.0.dev0"
