"""In the venv of a lab host: data sets and drawing libraries for public scripts, where the network lacks.

It lies there as `sitecustomize`, beside `small_data`. Nothing of a script is changed: what it would download comes from
here, and libraries that only draw do nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import urllib.request
from typing import Any

import small_data  # type: ignore[import-not-found]

small_data.TRAIN, small_data.TEST = 1280, 160
_SHAPES = {
    "mnist": ((28, 28), 10, False),
    "fashion_mnist": ((28, 28), 10, False),
    "cifar10": ((32, 32, 3), 10, True),
    "cifar100": ((32, 32, 3), 100, True),
}
_OTHERS = {"imdb": small_data._texts, "boston_housing": small_data._houses}


class _Loaders(importlib.abc.MetaPathFinder):
    """Gives Keras's data sets their loaders from here, when a script imports them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        package, _, short = name.rpartition(".")
        if not package.endswith("src.datasets") or short not in {*_SHAPES, *_OTHERS}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            if short in _SHAPES:
                shape, classes, column = _SHAPES[short]
                module.load_data = small_data._images(shape, classes, column=column)
            else:
                module.load_data = _OTHERS[short]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _from_here(open_address: Any) -> Any:
    def urlopen(address: Any, *args: Any, **kwargs: Any) -> Any:
        text = address if isinstance(address, str) else address.full_url
        here = os.path.join(os.path.expanduser("~/public-data"), text.rpartition("/")[2])
        return open_address(f"file://{here}" if os.path.exists(here) else address, *args, **kwargs)

    return urlopen


sys.meta_path.insert(0, _Loaders())
urllib.request.urlopen = _from_here(urllib.request.urlopen)
