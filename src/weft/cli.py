"""The command line: `weft plan ...`. Each group of commands is one module, imported here."""

from weft.commands import demo, listing, nodes, planning, reproduce, running
from weft.commands.app import app

__all__ = ["app", "demo", "listing", "main", "nodes", "planning", "reproduce", "running"]


def main() -> None:
    app()
