"""Compiles the modules that run for every record, if that is possible here.

Everything else about the package is in pyproject.toml. Without mypyc, without a C compiler, or with
ODRADEK_COMPILE=0 the modules are installed as they are: they do the same, slower
(docs/adr/0013-every-record-is-checked.md).
"""

import os
import sys

from setuptools import Extension, setup

COMPILED = [
    "odradek/protocol/message_converter.py",
    "odradek/protocol/record_walker.py",
    "odradek/pipeline/wire/record_decoder.py",
]


def extensions() -> list[Extension]:
    """The compiled modules. One that cannot be built is left out."""
    # pip asks for the metadata twice before it builds.
    only_metadata = {"egg_info", "dist_info"} & set(sys.argv)
    if only_metadata or os.environ.get("ODRADEK_COMPILE") == "0":
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        sys.stderr.write("mypyc is not there: nothing is compiled\n")
        return []
    # -O3 is worth 10 %. Debug information would be most of the file.
    # A file for each module, beside it: otherwise they share one at the top level of site-packages.
    built = mypycify([*COMPILED, "--config-file="], opt_level="3", debug_level="0", separate=True)
    for extension in built:
        extension.optional = True
        # What is compiled is newer than its source then (tests/support/compiled_modules.py).
        extension.depends = [*extension.depends, *COMPILED]
    return list(built)


# A compiler on each processor: most of the time that an installation takes.
setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count()}})
