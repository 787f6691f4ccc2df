"""A base class for objects that are closed at the end of a `with` block, also after an error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

Opened = TypeVar("Opened", bound="Closing")


class Closing(ABC):
    """An object that a `with` statement closes."""

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...
