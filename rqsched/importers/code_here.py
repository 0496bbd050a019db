"""Check whether there is code at a dotted path, without importing it, because an import could run anything."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

_MAKES_NAMES = re.compile(r"import\s*\(?\s*\*|__getattr__|globals\(\)|setattr\(")
"""Words in a module's source that show that the module may define further names at run time."""


def why_missing(path: str) -> str | None:
    """Return why there is no code at `package.module.function`. Return None if there is code, or may be."""
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if (loaded := sys.modules.get(module)) is not None:
        return None if hasattr(loaded, name) else f"{module} has no {name}"
    spec = _spec_of(module)
    if spec is None:
        return f"there is no module {module}"
    text = _text_of(spec)
    if text is None or re.search(rf"\b{name}\b", text) or _MAKES_NAMES.search(text):
        return None
    return f"{module} has no {name}"


def _spec_of(module: str) -> ModuleSpec | None:
    """Find a module as an import would find it, but do not import its parent packages."""
    names = module.split(".")
    places: Sequence[str] | None = None
    found: ModuleSpec | None = None
    for end, name in enumerate(names, 1):
        found = _find(".".join(names[:end]), places)
        if found is None:
            return None
        if found.submodule_search_locations is None and end < len(names):
            return None  # the parent is a module without submodules
        if found.origin is None:  # a namespace package gets its folders from its parent, which is not imported
            folders = (Path(place, name) for place in (sys.path if places is None else places))
            places = [str(folder) for folder in folders if folder.is_dir()]
        else:
            places = found.submodule_search_locations
    return found


def _find(module: str, places: Sequence[str] | None) -> ModuleSpec | None:
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    found = (find(module, places) for find in finders if find is not None)
    try:
        return next((spec for spec in found if spec is not None), None)
    except KeyError:  # a namespace package looks for its parent in sys.modules
        return ModuleSpec(module, None, is_package=True)


def _text_of(spec: ModuleSpec) -> str | None:
    """Return the source of a module; None for a module without source, such as a namespace package."""
    read = getattr(spec.loader, "get_source", None)
    try:
        return None if read is None else read(spec.name)
    except (ImportError, OSError, SyntaxError, ValueError):  # no source, or in an unknown encoding
        return None
