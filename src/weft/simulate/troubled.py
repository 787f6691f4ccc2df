"""Simulates a program while a script of faults slows devices down and cuts links.

    script = Faults().slow("cloud", x=8, step=10).cut("pi", "nuc", step=20, for_s=2)
    timeline = simulate_with(lower(plan), script, steps=40)

A plan has nobody to plan again when a device is lost, so faults that end a process are refused here; they
are for an emulated fleet.
"""

from __future__ import annotations

import math

import msgspec

from weft.errors import InputError
from weft.fleet.faults import ANY, Fault, Faults, Kind, check
from weft.fleet.routes import direct_hops
from weft.program.program import Program
from weft.program.timeline import Timeline
from weft.simulate.compiled import Compiled, compile_program
from weft.simulate.simulate import run
from weft.simulate.windows import Windows


def simulate_with(program: Program, script: Faults, steps: int) -> Timeline:
    """The timeline of `steps` minibatches. A fault of minibatch n begins when n is done."""
    check(script, program.plan.fleet)
    for number, fault in enumerate(script.fault, start=1):
        _check(number, fault, steps)
        if fault.kind == Kind.cut and _on_medium(program, fault):
            raise InputError(
                f"fault {number} (cut): {fault.device} and {fault.other} share a medium, which the simulator "
                "cannot cut for two of its members alone"
            )
    compiled = compile_program(program)
    windows = Windows()
    timeline = _run(program, compiled, steps, windows)
    for fault in sorted(script.fault, key=lambda f: -1 if f.step is None else f.step):
        begin = 0.0 if fault.step is None else timeline.step_ends[fault.step]
        begin += fault.after_s
        end = math.inf if fault.for_s is None else begin + fault.for_s
        _open(windows, program, compiled, fault, (begin, end))
        # What happens before the fault stays as it is, so the next fault's time is known after this.
        timeline = _run(program, compiled, steps, windows)
    return timeline


def _check(number: int, fault: Fault, steps: int) -> None:
    where = f"fault {number} ({fault.kind.value})"
    if fault.kind not in (Kind.slow, Kind.cut):
        raise InputError(
            f"{where} cannot be simulated: a plan does not change when a process is lost. The simulator "
            "takes slow and cut; train with local=True for the others"
        )
    if ANY in (fault.device, fault.other) or fault.during is not None:
        raise InputError(f"{where}: the simulator needs a name and a minibatch, not a choice")
    if fault.step is not None and fault.step >= steps:
        raise InputError(f"{where}: step {fault.step} is not among the {steps} minibatches")
    if fault.kind == Kind.cut and fault.for_s is None:
        raise InputError(
            f"{where}: a link that is cut for good never carries the message; give for_s"
        )


def _on_medium(program: Program, fault: Fault) -> bool:
    ends = {fault.device, fault.other}
    media = [{medium.gateway, *medium.members} for medium in program.plan.fleet.medium]
    return any(ends <= members for members in media)


def _run(program: Program, compiled: Compiled, steps: int, windows: Windows) -> Timeline:
    timeline = run(compiled, program.plan.route == "min", steps, True, windows)
    return msgspec.structs.replace(timeline, beat=max(2, program.beat))


def _open(
    windows: Windows,
    program: Program,
    compiled: Compiled,
    fault: Fault,
    window: tuple[float, float],
) -> None:
    if fault.kind == Kind.slow:
        if fault.device in compiled.devices:
            slow = windows.slow.setdefault(compiled.devices.index(fault.device), [])
            slow.append((*window, fault.x))
            slow.sort()
        return
    ends = {fault.device, fault.other}
    hops = [h for h in direct_hops(program.plan.fleet) if {h.source, h.dest} == ends]
    for name in {hop.channel for hop in hops} & {*compiled.channels}:
        cuts = windows.cut.setdefault(compiled.channels.index(name), [])
        cuts.append(window)
        cuts.sort()
