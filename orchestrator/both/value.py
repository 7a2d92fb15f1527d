"""Values with named fields, for what runs on hosts: to import dataclasses costs an agent more than all of its code."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self, dataclass_transform
else:

    def dataclass_transform() -> Any:
        """Do nothing: only mypy reads it."""
        return lambda cls: cls


@dataclass_transform()
class Value:
    """A value. The annotations of its class are its fields, in their order; what one is set to there is its default.

    >>> class Size(Value):
    ...     width: int
    ...     height: int = 1
    >>> small = Size(3)
    >>> small.replace(height=2).height, small.height
    (2, 1)
    """

    _names: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls._names = (*cls._names, *getattr(cls, "__annotations__", ()))

    def __init__(self, *given: Any, **named: Any) -> None:
        own = self.__dict__
        own.update(zip(self._names, given))  # noqa: B905 - mypy counts them
        own.update(named)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with the changes."""
        return type(self)(**{**self.__dict__, **changes})
