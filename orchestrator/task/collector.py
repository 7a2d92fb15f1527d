"""Python's cyclic garbage collector does not run while a framework is imported.

The import of TensorFlow makes some 450,000 objects that live as long as the process, and almost none that is garbage.
Under Python's thresholds the collector walks them again and again meanwhile: a quarter of the import's CPU.

The first threshold is set to 0, and nothing is disabled: so a library that disables and enables collection around
something of its own does not begin it again, and whoever sets thresholds or disables collection meanwhile is not
overruled.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def paused(*, freeze: bool = False) -> Iterator[None]:
    """Pause collection, and then collect once. With `freeze`, do not: all that is there is never walked again.

    Only before the script begins may that be. What a script has made may become garbage, and would not be freed.
    """
    before = gc.get_threshold()
    if before[0] == 0 or not gc.isenabled():  # it is paused already, or off for good
        yield
        return
    gc.set_threshold(0)
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        elif gc.isenabled():
            gc.collect()
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)
