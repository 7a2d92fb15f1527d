"""What a strategy's own module of the runtime does, and when. ORCH_RUNTIME names it; most need none."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from orchestrator.runtime.link import Link
    from orchestrator.runtime.script import Imports

    Options = Mapping[str, Any]
    Patches = dict[str, Callable[[ModuleType], None]]


class Part:
    """What a module gives as its PART. Each function may be left out."""

    def __init__(
        self,
        *,
        imports: Callable[[Options], Imports | None] = lambda _options: None,
        patches: Callable[[Options, Link], Patches] = lambda _options, _link: {},
        begin: Callable[[Options, Link], None] = lambda _options, _link: None,
    ) -> None:
        self.imports = imports
        """What the process imports before it is ready; None: what the script imports."""
        self.patches = patches
        """What is changed in which module, once the task is released."""
        self.begin = begin
        """Runs after the release, and before the script."""


def of(options: Options) -> Part:
    """The part that the plan's strategy has in the runtime."""
    name = options.get("module")
    if not name:
        return Part()
    from importlib import import_module

    part: Part = import_module(f"orchestrator.runtime.{name}").PART
    return part
