"""The commands that need no running node: models, strategies, profile, plan, compare, simulate."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Optional

import msgspec
import typer

from weft.commands import values
from weft.commands.app import app, say, show, show_json, writing
from weft.errors import InputError


class ModeName(str, Enum):
    train = "train"
    infer = "infer"


Model = Annotated[str, typer.Argument(help="A name from `weft models`, or file.py:factory.")]
FleetFile = Annotated[Path, typer.Option("--fleet", "-f", help="The fleet file (TOML).")]
Batch = Annotated[
    Optional[int], typer.Option("--batch", "-b", help="Samples in a minibatch [32; 1 to infer].")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
ProfileFile = Annotated[
    Optional[Path],
    typer.Option("--profile", "-p", help="Measured times (JSON); MODEL is then only a label."),
]
Settings = Annotated[
    Optional[list[str]],
    typer.Option("--set", metavar="KEY=VALUE", help="A strategy's option; see `weft strategies`."),
]
InputShape = Annotated[
    Optional[str],
    typer.Option("--input-shape", metavar="CxHxW", help="One sample's shape, such as 1x28x28."),
]
Classes = Annotated[Optional[int], typer.Option(help="Classes of a zoo network.")]
