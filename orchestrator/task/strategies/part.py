"""The interface of a strategy's own module in the runtime. ORCH_RUNTIME names the module; most strategies have none."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from orchestrator.both.script import Imports
    from orchestrator.task.link import Link

    Options = Mapping[str, Any]
    Patches = dict[str, Callable[[ModuleType], None]]


class StrategyPart:
    """The functions that a module exports as its PART. Each may be left out."""

    def __init__(
        self,
        *,
        imports: Callable[[Options], Imports | None] = lambda _options: None,
        patches: Callable[[Options, Link], Patches] = lambda _options, _link: {},
        begin: Callable[[Options, Link], None] = lambda _options, _link: None,
    ) -> None:
        self.imports = imports
        """Returns what the process imports before it is ready; None: what the script imports."""
        self.patches = patches
        """Returns the patches by module name, to be applied after the release."""
        self.begin = begin
        """Runs after the release, and before the script."""


def chosen(options: Options) -> StrategyPart:
    """Return the part of the plan's strategy."""
    name = options.get("module")
    if not name:
        return StrategyPart()
    from importlib import import_module

    part: StrategyPart = import_module(f"orchestrator.task.strategies.{name}").PART
    return part
