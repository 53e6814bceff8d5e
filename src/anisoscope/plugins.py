"""Code of users that registers measures, nulls and proxies, loaded by name: a Python file, or a module."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from anisoscope.errors import AnisoscopeError, broken

_LOADED: dict[str, str] = {}  # module by the name it was asked for


def load_plugins(names: Iterable[str]) -> None:
    """Import each once; whatever it registers is there afterwards."""
    for name in names:
        is_file = name.endswith(".py")
        key = str(Path(name).resolve()) if is_file else name
        if key not in _LOADED:
            _LOADED[key] = _run_file(Path(key)) if is_file else _import(key)


def origins(modules: Iterable[str]) -> tuple[str, ...] | None:
    """What another process must load to have these modules too; None if one of them cannot be found from there."""
    by_module = {module: name for name, module in _LOADED.items()}
    found = []
    for module in sorted(set(modules)):
        if module in by_module:
            found.append(by_module[module])
        elif module != "__main__" and not module.startswith("anisoscope.") and _is_importable(module):
            found.append(module)
        else:
            return None
    return tuple(found)


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _import(name: str) -> str:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.split(".")[0] == error.name.split(".")[0]:
            raise broken("a plugin must be a Python file or an importable module", name, "check the name") from error
        raise AnisoscopeError(f"the plugin {name} needs {error.name}, which is not installed") from error
    except Exception as error:
        raise AnisoscopeError(f"the plugin {name} failed: {type(error).__name__}: {error}") from error
    return name


def _run_file(path: Path) -> str:
    if not path.is_file():
        raise broken("a plugin must be a Python file or an importable module", str(path), "there is no such file")
    module = f"anisoscope_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    try:
        spec.loader.exec_module(made)
    except Exception as error:
        del sys.modules[module]
        raise AnisoscopeError(f"the plugin {path} failed: {type(error).__name__}: {error}") from error
    return module
