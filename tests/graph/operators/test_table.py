"""The table of operators: what a record says is true of the function, and nothing else may run."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.errors import InputError
from weft.graph.capture.module import capture, state_of
from weft.graph.execute import Runner
from weft.graph.operators.record import Operator
from weft.graph.operators.table import OPERATORS, operator_named
from weft.graph.split.divide import divide
from weft.graph.split.rows import needed_rows
from weft.graph.split.slices import rows_segment
from weft.graph.split.state import sliced_state
from weft.graph.split.units import listed_segment, unit_widths

pytestmark = pytest.mark.usefixtures("one_thread")


def schema_of(record: Operator) -> Any:
    """What PyTorch says of the operator's arguments; None for those that are not PyTorch's."""
    if not record.name.startswith("aten."):
        return None
    _, base, overload = record.name.split(".")
    return getattr(getattr(torch.ops.aten, base), overload)._schema


def of_one_tensor(record: Operator) -> bool:
    """Whether one tensor is all that the operator needs."""
    schema = schema_of(record)
    needed = [a for a in schema.arguments if not a.has_default_value()] if schema else []
    return len(needed) == 1 and str(needed[0].type) == "Tensor"


ON_ONE = [r for r in OPERATORS.values() if r.elementwise and not r.random and of_one_tensor(r)]


@pytest.mark.parametrize("record", OPERATORS.values(), ids=list(OPERATORS))
def test_every_record_names_a_function_of_this_pytorch(record: Operator) -> None:
    assert callable(record.function)
    assert record.function is record.function


def test_a_record_that_pytorch_does_not_have_is_refused_with_its_name() -> None:
    with pytest.raises(InputError, match=r"aten\.no_such\.default is not in PyTorch"):
        _ = Operator("aten.no_such.default").function


@pytest.mark.parametrize("name", ["aten.from_file.default", "os.system", "", "torch.relu"])
def test_what_is_not_in_the_table_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not one that Weft knows"):
        operator_named(name)


@pytest.mark.parametrize("record", ON_ONE, ids=lambda record: record.name)
def test_an_elementwise_operator_makes_each_place_of_that_place_alone(record: Operator) -> None:
    x = torch.rand(2, 3, 6, 4) + 0.1
    bound = torch.tensor(0.7) if record.name.endswith(".Tensor") else 0.7
    bounds = {"max": bound} if "clamp" in record.name else {}  # PyTorch wants one of its two bounds
    whole = record.function(x, **bounds)
    assert whole.shape == x.shape
    # Some have no value above 1, such as acos.
    rows, channels = record.function(x[:, :, 2:5], **bounds), record.function(x[:, 1:2], **bounds)
    torch.testing.assert_close(rows, whole[:, :, 2:5], equal_nan=True)
    torch.testing.assert_close(channels, whole[:, 1:2], equal_nan=True)


def test_most_activations_are_among_those() -> None:
    assert len(ON_ONE) > 30


def test_positions_are_those_of_the_arguments_that_are_meant() -> None:
    flags = {record.name for record in OPERATORS.values() if record.training_flag is not None}
    assert "aten.batch_norm.default" in flags
    assert "aten.instance_norm.default" not in flags  # it normalises by the batch in eval mode too
    for record in OPERATORS.values():
        names = [a.name for a in schema_of(record).arguments] if schema_of(record) else []
        if record.training_flag is not None:
            assert names[record.training_flag] in ("train", "training")
        if record.drop_probability is not None:
            assert names[record.drop_probability] == "dropout_p"
        if record.rows is not None and record.rows.padding is not None:
            assert names[record.rows.padding] == "padding"
        if record.always_random:  # it has no flag that says "training"
            assert not {"train", "training", "dropout_p"} & set(names)


def test_names_of_operators_stand_in_the_table_and_nowhere_else() -> None:
    """Elsewhere a module asks the record, or writes a node with `operators.calls`."""
    root = Path(weft.__file__).parent
    for path in root.rglob("*.py"):
        if path.parent == root / "graph" / "operators":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in OPERATORS:
                assert node.value == "getitem", f"{path.name}, line {node.lineno}: {node.value}"


def test_the_table_is_read_without_loading_torch() -> None:
    code = "import sys, weft.graph.operators.table; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


class Arctan(nn.Module):
    """`atan` came to the table by its name among the elementwise operators, and by nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.atan(x)


@pytest.fixture
def with_arctan() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    chain = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), Arctan(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * 4 * 4, 5), Arctan(), nn.Linear(5, 3),
    )  # fmt: skip
    return chain, torch.randn(2, 1, 8, 8)


def test_a_new_operator_is_captured_run_and_cut_into_rows_by_its_record(
    with_arctan: tuple[nn.Sequential, Tensor],
) -> None:
    module, x = with_arctan
    graph, state = capture(module, x), state_of(module)
    last = len(graph.layers) - 1
    with torch.no_grad():
        whole = Runner(graph.segment(0, last), state).forward({graph.inputs[0]: x})
        torch.testing.assert_close(whole[graph.output], module(x))
        division = divide(graph, (0, 0), "rows")
        wanted = {graph.cuts[1][0]: (1, 3)}
        first, end = needed_rows(graph, division.own, wanted, division.rules)[graph.inputs[0]]
        takes = {graph.inputs[0]: (first, end)}
        segment = rows_segment(graph, (0, 0), 1, division, takes, wanted)
        strip = Runner(segment, sliced_state(segment, state)).forward(
            {graph.inputs[0]: x[:, :, first:end]}
        )
        torch.testing.assert_close(strip[graph.cuts[1][0]], module[:3](x)[:, :, 1:3])


def test_a_new_operator_is_spread_by_units_by_its_record(
    with_arctan: tuple[nn.Sequential, Tensor],
) -> None:
    module, x = with_arctan
    graph, state = capture(module, x), state_of(module)
    assert unit_widths(graph) == (4, 5)
    segment = listed_segment(graph, 0, 1, units=(3, 1))
    with torch.no_grad():
        made = Runner(segment, sliced_state(segment, state)).forward({graph.inputs[0]: x})
        torch.testing.assert_close(made[graph.cuts[1][0]], module[:3](x)[:, [3, 1]])
