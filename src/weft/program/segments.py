"""The segment that a device runs in a round: its part of the round's layers, cut out of the graph.

segment = turn_segment(graph, plan.rounds[0], 2)      # the first device's turn in the first round

`graph` has its layers in sequence (weft.graph.sequence).
"""

from __future__ import annotations

from weft.graph.network import Graph, Segment
from weft.graph.split.divide import divide
from weft.graph.split.slices import (
    after_sum_segment,
    plain_segment,
    rows_and_data_segment,
    rows_segment,
    units_segment,
)
from weft.plans.rounds import Round


def turn_segment(graph: Graph, each: Round, number: int) -> Segment:
    """The segment of a turn; `number` as in `Round.numbered`."""
    division = divide(graph, each.layers, each.mode)
    turn = each.numbered[number]
    takes, gives = (
        {strip.value: (strip.first, strip.last) for strip in strips}
        for strips in (turn.takes, turn.gives)
    )
    where = (graph, each.layers, number)
    if number == 1:
        return plain_segment(*where, division.before, takes, gives)
    if number == len(each.turns) + 2:
        if each.sums:
            return after_sum_segment(*where, division, gives)
        return plain_segment(*where, division.after, takes, gives)
    if each.mode == "whole":
        return plain_segment(*where, division.own, takes, gives)
    if each.mode == "rows":
        return rows_segment(*where, division, takes, gives)
    if each.mode == "rows+data":
        return rows_and_data_segment(*where, division, takes, turn.places)
    return units_segment(*where, division, takes, gives, turn.places)
