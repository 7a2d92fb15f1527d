"""Pauses Python's cyclic garbage collector while a framework is imported.

The import of TensorFlow makes some 450,000 objects that live as long as the process, and almost none that is garbage.
Under Python's thresholds the collector walks them again and again meanwhile: a quarter of the import's CPU.

The first threshold is set to 0 instead of disabling collection. So a library that disables and enables collection
around its own work does not start it again, and thresholds that anybody sets meanwhile are kept.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def paused(*, freeze: bool = False) -> Iterator[None]:
    """Pause collection, and then collect once. With `freeze`, exempt all present objects from collection instead.

    Use `freeze` only before the script begins: objects that a script has made may become garbage, and must be freed.
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
