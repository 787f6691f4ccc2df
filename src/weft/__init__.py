"""Weft weaves one neural network through many devices.

    fleet = weft.Fleet.load("fleet.toml")
    plan = weft.plan(model, example_input, fleet, strategy="chain")
    print(plan)

Torch is imported only when a network is touched, so that `import weft` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.api import load_model, plan
from weft.errors import InputError, LostDevice, WeftError
from weft.fleet.fleet import Fleet
from weft.plans.plan import Plan
from weft.version import __version__

if TYPE_CHECKING:
    from weft.adapt.train import train
    from weft.graph.capture import capture
    from weft.runtime.run.serve import serve

__all__ = [
    "Fleet",
    "InputError",
    "LostDevice",
    "Plan",
    "WeftError",
    "__version__",
    "capture",
    "load_model",
    "plan",
    "serve",
    "train",
]

# What is imported when it is first asked for, and from where: it imports torch.
LATER = {
    "train": "weft.adapt.train",
    "serve": "weft.runtime.run.serve",
    "capture": "weft.graph.capture",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    value = getattr(import_module(LATER[name]), name)
    globals()[name] = value  # help() and later calls find it as they find the others
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
