"""orch: TensorFlow training over plain SSH hosts. `from orchestrator import Client` starts and watches runs.

Hosts and tasks import this package too, so it imports nothing until the client is asked for. `__init__.pyi` has its
types.
"""

__version__ = "0.1.0"
__all__ = ["Client", "Run", "__version__"]


def __getattr__(name):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 (typing is not imported)
    if name not in ("Client", "Run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("orchestrator.client.client"), name)
