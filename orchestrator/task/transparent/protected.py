"""What only the script knows, and gives to `runtime.protect`: it is a part of each save, and of what is handed over.

In a fit it is kept as what a callback remembers is (`remembered.py`). In a loop it is a part of the manager's
checkpoint. There it is held whenever the loop tells of a step, since a loop that is interrupted has begun the next one.
"""

from __future__ import annotations

import contextlib
import io
import json

from orchestrator.task import this_task
from orchestrator.task.transparent.remembered import Protected, Unkept, decoded, encoded, frozen_copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


def protect(name: str, save: Callable[[], Any], restore: Callable[[Any], object]) -> None:
    """Add a part of the script's state. Raises TypeError where it cannot be kept, and ValueError for a wrong call."""
    if not name or not isinstance(name, str) or name in this_task.protected:
        raise ValueError(f"runtime.protect: {name!r} is no new name: give each part of the state its own")
    if this_task.held is not None:
        raise ValueError(f"runtime.protect({name!r}) comes too late: call it before `runtime.rescue`")
    state = save()
    try:
        encoded(state, {})
    except Unkept as e:
        raise TypeError(
            f"runtime.protect({name!r}): what `save` returns holds a {e}, which cannot be kept: return numbers, texts, "
            "bytes, arrays, and lists, sets and dicts of them"
        ) from None
    this_task.protected[name] = Protected(save, restore)
    # Where TensorFlow has no class for the strategy, the ranks may well be of another framework
    if "strategy" in this_task.options and "tf_class" not in this_task.options and this_task.link is not None:
        where = (
            "a fit of Keras on TensorFlow, or a `tf.train.CheckpointManager` that `runtime.rescue` is given"
        )
        what = f"what is given to runtime.protect({name!r}) is saved with {where}"
        this_task.link.say("transparent-backup", f"{what}: with nothing else, as of JAX or PyTorch")


class Held:
    """What is protected in a loop, as of the last step that the loop has told of."""

    def __init__(self) -> None:
        self.counted: Callable[[], int] | None = None
        """Returns how many steps were done; None where no survivor could hand over."""
        self._held: tuple[int, dict[str, Any]] = (0, {})
        self._hands_over = False

    def told_step(self) -> None:
        """Hold what is protected: a step is done, and so are the script's own lines for it."""
        if this_task.protected and self.counted is not None:
            state = {name: frozen_copy(each.state) for name, each in this_task.protected.items()}
            self._held = self.counted(), state

    def behind(self, most: int = 0) -> str:
        """Return why what is held is not of the last step, or of `most` steps before it; empty if it is."""
        behind = self.counted() - self._held[0] if this_task.protected and self.counted is not None else 0
        if behind <= most:
            return ""
        said = "`runtime.report` was not called for the last step"
        return f"what the script gives to `runtime.protect` is of {behind} steps before: {said}"

    @contextlib.contextmanager
    def handing_over(self) -> Iterator[None]:
        """Within it, what is saved is what was held, and not what is there now."""
        self._hands_over = True
        try:
            yield
        finally:
            self._hands_over = False

    def state_of(self, name: str) -> Any:
        """Return what is to be saved of this part."""
        return self._held[1][name] if self._hands_over else this_task.protected[name].state

    def attach(self, checkpoint: Any) -> None:
        """Make all that is protected a part of a `tf.train.Checkpoint`."""
        import tensorflow as tf

        held = self

        class State(tf.train.experimental.PythonState):  # type: ignore[misc]
            def __init__(self, name: str) -> None:
                self._name = name

            def serialize(self) -> bytes:
                return packed(held.state_of(self._name))

            def deserialize(self, text: bytes) -> None:
                this_task.protected[self._name].state = unpacked(text)

        for name in this_task.protected:
            setattr(checkpoint, f"orch_protect_{name}", State(name))


def packed(state: Any) -> bytes:
    """Return it as bytes, with its arrays."""
    import numpy as np

    arrays: dict[str, Any] = {}
    code, file = json.dumps(encoded(state, arrays)), io.BytesIO()
    np.savez(file, code=np.frombuffer(code.encode(), np.uint8), **arrays)
    return file.getvalue()


def unpacked(text: bytes) -> Any:
    """Return what was packed."""
    import numpy as np

    with np.load(io.BytesIO(text)) as file:
        return decoded(json.loads(bytes(file["code"])), file)
