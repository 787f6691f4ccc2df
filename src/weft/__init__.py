"""Weft weaves one neural network through many devices.

    fleet = weft.Fleet.load("fleet.toml")
    plan = weft.plan(model, example_input, fleet, strategy="chain")
    print(plan)

Every name is imported when it is first used. So `import weft` is quick, and a node that imports a part of
Weft does not load the planners.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.adapt.serve import serve
    from weft.adapt.train import train
    from weft.api import compare, load_model, plan
    from weft.errors import InputError, LostDevice, WeftError
    from weft.fleet.faults import Faults
    from weft.fleet.fleet import Fleet
    from weft.graph.capture.module import capture
    from weft.planning.comparison import Comparison
    from weft.plans.plan import Plan
    from weft.report.curves import LiveChart
    from weft.runtime.run.results import TrainResult
    from weft.runtime.run.watch.callbacks import Callback, EarlyStopping
    from weft.runtime.run.watch.logs import CsvLog, TensorBoardLog
    from weft.version import __version__

__all__ = [
    "Callback",
    "Comparison",
    "CsvLog",
    "EarlyStopping",
    "Faults",
    "Fleet",
    "InputError",
    "LiveChart",
    "LostDevice",
    "Plan",
    "TensorBoardLog",
    "TrainResult",
    "WeftError",
    "__version__",
    "capture",
    "compare",
    "load_model",
    "plan",
    "serve",
    "train",
]

# The module of each name.
LATER = {
    "Callback": "weft.runtime.run.watch.callbacks",
    "Comparison": "weft.planning.comparison",
    "CsvLog": "weft.runtime.run.watch.logs",
    "EarlyStopping": "weft.runtime.run.watch.callbacks",
    "Faults": "weft.fleet.faults",
    "Fleet": "weft.fleet.fleet",
    "InputError": "weft.errors",
    "LiveChart": "weft.report.curves",
    "LostDevice": "weft.errors",
    "Plan": "weft.plans.plan",
    "TensorBoardLog": "weft.runtime.run.watch.logs",
    "TrainResult": "weft.runtime.run.results",
    "WeftError": "weft.errors",
    "__version__": "weft.version",
    "capture": "weft.graph.capture.module",
    "compare": "weft.api",
    "load_model": "weft.api",
    "plan": "weft.api",
    "serve": "weft.adapt.serve",
    "train": "weft.adapt.train",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    import_module("weft.api")  # plans print as tables from now on
    value = getattr(import_module(LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
