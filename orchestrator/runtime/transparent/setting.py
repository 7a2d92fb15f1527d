"""The settings of a transparent run."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.runtime.transparent.said import Said


class Setting:
    """The settings that all fits of a process share."""

    def __init__(self, library: str, strategy: Any, options: dict[str, Any], said: Said, chief: bool) -> None:
        self.library = library
        self.strategy = strategy
        self.said = said
        self.chief = chief
        self.per_replica = options.get("batch") == "per_replica"
        self.save_every = int(options["save_every_steps"]) if options.get("save_every_steps") else None
        self.checkpoint_dir = os.environ.get("ORCH_CHECKPOINT_DIR") or None
        self.fits = 0
        self.inside = False
