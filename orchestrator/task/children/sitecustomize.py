"""Patches Keras 3 in each Python that the script of a task has started, once that looks for Keras.

The runtime puts this directory first into PYTHONPATH, so the `site` of each of them imports this module, whichever
Python it is: any since 2.7 can run this. The host's own `sitecustomize`, which it hides, is imported too.
"""

# ruff: noqa: ANN001, ANN202, ARG002, UP031

import importlib
import os
import sys


class _BeforeKeras:
    """Comes first in sys.meta_path until somebody looks for Keras, and finds nothing itself."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name == "keras":
            sys.meta_path.remove(self)
            try:
                from orchestrator.task.keras import hooks
                from orchestrator.task.link import Link

                hooks.patch_keras3(Link(None))
            except Exception as e:
                sys.stderr.write("orch: Keras was not patched in this child: %s\n" % e)


_this = sys.modules.pop(__name__)  # kept: Python 2 empties a module to which nobody refers
_here = os.path.abspath(os.path.dirname(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _here]
if sys.version_info >= (3, 10) and "ORCH_TASK" in os.environ and "ORCH_FD" not in os.environ:
    sys.meta_path.insert(0, _BeforeKeras())
try:
    importlib.import_module(__name__)
except ImportError:  # what `site` expects where there is none
    sys.modules[__name__] = _this  # Python 3.7 removes it, and must find it
    raise
