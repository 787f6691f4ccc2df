"""What is closed at the end of a `with` block, whatever happened in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

Opened = TypeVar("Opened", bound="Closing")


class Closing(ABC):
    """Something that a `with` statement closes."""

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
