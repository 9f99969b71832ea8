"""Scenarios in a file, for ``fencepost explore FILE``.

They are what stands in the file under a name: a ``Scenario``, or a function that is annotated to
return one and can be called without arguments. A dict ``SCENARIOS`` names them instead, if there is one.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from fencepost.errors import Refused
from fencepost.testing.scenario import Scenario

Maker = Callable[[], Scenario]


def load(path: Path) -> dict[str, Maker]:
    """The scenarios of a file, by name, in its order.

    Args:
        path: A Python file. It is run; its folder is where its imports are looked for first.

    Raises:
        Refused: It is no Python file, or holds no scenario.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise Refused(f"{path} is no Python file")
    sys.path.insert(0, str(path.resolve().parent))
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = dict(_scenarios(module))
    if not found:
        raise Refused(
            f"{path} holds no scenario: give a Scenario a name there, or return one from a function"
        )
    return found


def _scenarios(module: ModuleType) -> Iterator[tuple[str, Maker]]:
    named: Mapping[str, Any] | None = getattr(module, "SCENARIOS", None)
    for name, value in (vars(module) if named is None else named).items():
        if isinstance(value, Scenario):
            yield name, partial(_given, value)
        elif inspect.isfunction(value) and (named is not None or _makes_one(value, module)):
            yield name, value


def _given(scenario: Scenario) -> Scenario:
    return scenario


def _makes_one(function: Callable[..., Any], module: ModuleType) -> bool:
    if function.__module__ != module.__name__ or function.__name__.startswith("_"):
        return False
    signature = inspect.signature(function)
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        one
        for one in signature.parameters.values()
        if one.default is one.empty and one.kind not in optional
    ]
    return not needed and signature.return_annotation in (Scenario, "Scenario")
