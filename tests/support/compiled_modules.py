"""The modules that mypyc compiles: as Python runs them, and whether they changed since."""

import ast
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def compiled_sources() -> list[Path]:
    """Of setup.py's list."""
    for statement in ast.parse((ROOT / "setup.py").read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="COMPILED")], value=value):
                return [ROOT / path for path in ast.literal_eval(value)]
    raise AssertionError("setup.py has no list of compiled modules")


def stale(sources: Iterable[Path]) -> list[Path]:
    """Those that were changed after they were compiled. Python runs what was compiled, not them."""
    return [
        source
        for source in sources
        if any(
            built.stat().st_mtime < source.stat().st_mtime
            for built in source.parent.glob(f"{source.stem}.*.so")
        )
    ]


def uncompiled(source: Path) -> ModuleType:
    """The module as Python runs it, also where a compiled one is there."""
    spec = importlib.util.spec_from_file_location(f"uncompiled_{source.stem}", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
