"""The command line: `weft plan ...`. Each group of commands is one module, imported here."""

from weft.commands import planning
from weft.commands.app import app

__all__ = ["app", "main", "planning"]


def main() -> None:
    app()
