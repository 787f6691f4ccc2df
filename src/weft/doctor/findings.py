"""One result of a check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

State = Literal["ok", "warning", "fault"]
Check = Literal["versions", "clock", "certificate", "port", "memory", "speed", "presence"]


class Finding(Struct, frozen=True):
    """How something is. `do` says what to do about a warning or a fault."""

    check: Check
    device: str
    state: State
    says: str
    do: str = ""

    def cells(self) -> tuple[str, str, str, str]:
        """A row of the table."""
        return (
            self.device,
            self.check,
            self.state,
            f"{self.says}{'' if self.says.endswith('?') else '.'} {self.do}"
            if self.do
            else self.says,
        )


def worst(findings: Iterable[Finding]) -> State:
    """The worst state of all."""
    states = {finding.state for finding in findings}
    return "fault" if "fault" in states else "warning" if "warning" in states else "ok"
