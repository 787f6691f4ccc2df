"""From an nn.Module to an exported program: `torch.export` with a dynamic number of samples.

    exported = export(module, example, "net", "train")
    exported.program, exported.names        # the program; every parameter's first name
    exported.readers                        # lines that read the mode: the graph of the other mode may differ

Three things are set right on the way. A module's `config.use_cache` (transformers) is off, because a cache is
no tensor. Tests of data in Python that are constant are replayed (data_tests.py). `len(x)` is variable
(sample_counts.py).
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.utils._pytree import tree_leaves

from weft.errors import InputError
from weft.graph.capture.advice import for_error
from weft.graph.capture.asked import Seeds, watched_questions
from weft.graph.capture.data_tests import Replay, inside_torch, recorded_tests
from weft.graph.capture.modes import check_modes, in_mode, watched_modes
from weft.graph.capture.own_gradients import (
    OwnGradients,
    refusal_of_gradients,
    refusal_of_weights,
    watched_gradients,
)
from weft.graph.capture.python_state import (
    Python,
    left_as_it_was,
    refusal_of_python,
    watched_python,
)
from weft.graph.capture.regions import inline_regions
from weft.graph.capture.sample_counts import symbolic_len, watched_counts
from weft.graph.capture.signature import Sample, grown, leaves_of
from weft.graph.network import Mode

# In the texts of torch's errors.
_DATA_DEPENDENT = "data-dependent"
_UNFOLLOWED = "fake tensor in the exported program constant"
_FIXED = "specialized it to be a constant"
_MANY = 25  # samples, from which on torch.cdist computes with products
_BATCHES = (*range(2, 34), 48, 64, 100, 128, 1000)  # for which torch's guards must hold


@torch.library.register_fake("aten::_ctc_loss.Tensor")  # type: ignore[untyped-decorator]
def _ctc_shapes(scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """The shapes of CTC's results, which torch does not know without data: a loss for each sample, and what
    only its backward pass reads."""
    steps, samples, _classes = scores.shape
    return scores.new_empty(samples), scores.new_empty(samples, steps, 1)


class Watched(NamedTuple):
    """What was noted while a module was exported."""

    readers: list[str]  # where code outside of torch reads the mode
    python: Python
    gradients: OwnGradients
    seeds: Seeds


class Exported(NamedTuple):
    """A module as an exported program."""

    program: ExportedProgram
    names: dict[str, str]  # of parameters: a tied one has several names, of which the first is used
    readers: list[str]  # where code outside of torch reads the mode
    differs: str = ""  # why the program does not compute what every call of the module does; or ""
    learns: str = ""  # why training it would learn something else; or ""


def export(module: nn.Module, example: Sample, label: str, mode: Mode) -> Exported:
    """The module in one mode. Raises InputError with the user's line if it cannot be exported."""
    leaves_of(example, f"the example input of {label}")
    check_modes(module, label)
    _check_no_script(module, label)
    try:
        program, watched = _with_any_count(module, example, label, mode, None)
    except InputError:
        raise
    except Exception as error:
        if _DATA_DEPENDENT not in str(error):
            raise _refused(label, error) from error
        program, watched = _replayed(module, example, label, mode, error)
    _check_batch_sizes(program, label)
    _check_no_seeds(watched.seeds, label)
    inline_regions(program, label)
    names: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(tensor), name)
    differs = refusal_of_python(module, example, label, mode, watched.python)
    learns = refusal_of_gradients(module, example, label, watched.gradients)
    learns = learns or refusal_of_weights(program, label)
    return Exported(program, names, watched.readers, differs, learns)


def _check_no_script(module: nn.Module, label: str) -> None:
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise InputError(
                f"{label} cannot be captured: {name or 'it'} is a torch.jit module; give the module that it "
                "was made from"
            )


def _check_no_seeds(seeds: Seeds, label: str) -> None:
    if seeds.places:
        raise InputError(
            f"{label} cannot be captured ({seeds.places[0]}): forward seeds torch's random numbers there, "
            "and each device draws from a generator of its own. Draw numbers that stay the same once, in "
            "__init__, and keep them in a buffer (register_buffer)"
        )


def _with_any_count(
    module: nn.Module, example: Sample, label: str, mode: Mode, replay: Replay | None
) -> tuple[ExportedProgram, Watched]:
    """The module for any number of samples. It is exported again with a variable `len(x)` if the plain export
    fixes the number."""
    try:
        return _exported(module, example, mode, replay)
    except Exception as error:
        if _FIXED not in str(error):
            raise
    with watched_counts() as fixed, symbolic_len():
        try:
            return _exported(module, example, mode, replay)
        except Exception as error:
            if _FIXED not in str(error):
                raise
            where = f" ({fixed.places[0]})" if fixed.places else ""
            raise InputError(
                f"{label} cannot be captured{where}: the number of samples becomes a fixed number there; use "
                "x.shape[0] without int(), and operations on whole tensors in place of loops over samples"
            ) from error


def _exported(
    module: nn.Module, example: Sample, mode: Mode, replay: Replay | None
) -> tuple[ExportedProgram, Watched]:
    # Batch sizes 0 and 1 are special to torch.export: trace with 3.
    args, kwargs = grown(example, 3)
    shapes: Any = ShapesCollection()  # type: ignore[no-untyped-call]
    for x in tree_leaves((args, kwargs)):
        shapes[x] = {0: Dim.DYNAMIC}
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_mode(module, mode))
        stack.enter_context(_without_cache(module))
        stack.enter_context(quiet())
        readers = stack.enter_context(watched_modes())
        seeds = stack.enter_context(watched_questions(mode, readers))
        gradients = stack.enter_context(watched_gradients())
        stack.enter_context(left_as_it_was(module))
        python = stack.enter_context(watched_python(module))
        if replay is not None:
            stack.enter_context(replay)
            stack.enter_context(inside_torch(replay))
        program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    return program, Watched(list(dict.fromkeys(readers.places)), python, gradients, seeds)


def _replayed(
    module: nn.Module, example: Sample, label: str, mode: Mode, error: Exception
) -> tuple[ExportedProgram, Watched]:
    """The module with its constant tests of data replayed, where the plain export met `error`."""
    try:
        with _without_cache(module), quiet():
            replay = recorded_tests(module, example, label, mode)
    except InputError:
        raise
    except Exception as failed:
        raise _refused(label, failed) from failed
    if replay is None:
        raise _refused(label, error) from error
    try:
        return _with_any_count(module, example, label, mode, replay)
    except InputError:
        raise
    except Exception as again:
        raise _refused(label, again) from again


def _check_batch_sizes(program: ExportedProgram, label: str) -> None:
    """Raises InputError if the program holds only for some numbers of samples: forward chose its way by
    them. torch notes each such choice as a guard."""
    sizes = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"]
    modes = [x.fake_mode for x in sizes if isinstance(x, FakeTensor)]
    distances = any("aten.cdist." in str(n.target) for n in program.graph.nodes)
    for guard in modes[0].shape_env.guards if modes and modes[0].shape_env else ():
        if distances and _of_cdist(guard):
            continue
        symbols = [s for s in guard.expr.free_symbols if str(s).startswith("s")]
        for batch in _BATCHES if len(symbols) == len(guard.expr.free_symbols) else ():
            if guard.expr.subs(dict.fromkeys(symbols, batch)) == False:  # noqa: E712 (sympy's)
                raise InputError(
                    f"{label} computes something else for {batch} samples ({guard.expr} does not hold); "
                    "forward must not choose by the number of samples"
                )


def _of_cdist(guard: Any) -> bool:
    """Whether a guard is torch.cdist's own. It computes the same with products for more than 25 samples, and
    does so on a device too. A user's choice is noted at another line."""
    return "_ops.py" in str(guard.sloc) and _MANY in {
        int(n) for n in guard.expr.atoms() if n.is_Integer
    }


@contextlib.contextmanager
def _without_cache(module: nn.Module) -> Iterator[None]:
    """Switches off `use_cache` in every configuration object of the module, and on again at the end."""
    objects: list[Any] = [getattr(part, "config", None) for part in module.modules()]
    configurations = {id(c): c for c in objects if getattr(c, "use_cache", None) is True}
    try:
        for configuration in configurations.values():
            configuration.use_cache = False
        yield
    finally:
        for configuration in configurations.values():
            configuration.use_cache = True


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses torch's warnings, log and dumps: Weft's error message says what went wrong."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _refused(label: str, error: BaseException) -> InputError:
    return InputError(
        f"{label} cannot be captured{_where(error)}: {_brief(error)}{for_error(error)}"
    )


def _where(error: BaseException) -> str:
    """The last line of the user's code in an error's traceback."""
    skip = (f"{Path(torch.__file__).parent}{os.sep}", str(Path(__file__).parent))
    place = ""
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not filename.startswith((*skip, "<")) and "/contextlib" not in filename:
            place = f" ({Path(filename).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _brief(error: BaseException) -> str:
    if _DATA_DEPENDENT in str(error) or isinstance(error, DynamicOutputShapeException):
        return (
            "a size or a test there depends on the numbers in a tensor. Use operations whose results have a "
            "fixed size: torch.where, a product with a mask, one_hot(x, n).sum(0) for bincount(x) "
            f"({_shortened(error)})"
        )
    if _UNFOLLOWED in str(error):
        return "torch cannot follow a tensor there"
    return _shortened(error)


def _shortened(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] or type(error).__name__
