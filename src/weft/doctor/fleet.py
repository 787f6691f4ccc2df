"""The checks of a fleet: every node that is there, and the ways between them.

for finding in examine_fleet(("192.0.2.7:7447",), group="weft"): print(finding.says, finding.do)
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence

from weft.doctor.device import judge_memory, judge_speed, judge_versions
from weft.doctor.findings import Finding
from weft.errors import WeftError
from weft.runtime.keys.handshake import why_refused
from weft.runtime.run.launch import Place, open_crew_of
from weft.runtime.run.measuring.survey import Survey
from weft.runtime.wire import messages as msg
from weft.runtime.wire.crew import Crew
from weft.runtime.wire.reach import reach
from weft.runtime.wire.session import parts_of

APART_S = 5.0  # clocks that differ by more make logs and certificates wrong
CONNECT_S, ANSWER_S, PROBE_S = 3.0, 10.0, 60.0


def examine_fleet(
    join: Sequence[str], *, group: str = "weft", wait_s: float = 2.0, config: str | None = None
) -> Iterator[Finding]:
    """Looks for nodes for `wait_s` seconds, then asks each of them, then lets each reach each other."""
    refused = list(_refused(join, group, config))
    yield from refused
    if refused and len(refused) == len(join):
        return
    try:
        crew = open_crew_of(Place(join=tuple(join), group=group, config=config))
    except WeftError as error:
        says, _, do = str(error).partition("; ")
        yield Finding("port", "fleet", "fault", says, do or "Is a node running there?")
        return
    with crew:
        time.sleep(wait_s)  # nodes come at their own pace: nothing tells "that is all"
        names = crew.present
        if not names:
            says, do = f"no node of fleet {group} is there", "Start `weft node --name ...` there"
            do += f", with --group {group}" if join else f", with --group {group}; or give --join"
            if join:
                says += f", although {', '.join(join)} can be reached: is --group right?"
            yield Finding("presence", "fleet", "fault", says, do)
            return
        for name in names:
            yield from _examine_node(crew, name)
        yield from _ways(crew, names)


def _refused(join: Sequence[str], group: str, config: str | None) -> Iterator[Finding]:
    """Nodes to join that cannot be reached from here, or do not let this machine in."""
    reached = reach(group, join=join, config=config)
    for endpoint in reached.join:
        closed = _closed(endpoint)
        if closed:
            do = "Start `weft node` there, and open the port in its firewall"
            yield Finding("port", endpoint, "fault", closed, do)
            continue
        words = why_refused(endpoint, reached.keys) if config is None else ""
        # A node without keys does not answer a TLS handshake at all.
        if words and (reached.keys is not None or words.startswith("it wants a certificate")):
            do = "The owner makes an invitation with `weft keys invite NAME`: type it there"
            if words.startswith("it wants a certificate"):
                do = "The owner makes an invitation with `weft keys invite NAME`: type it here"
            yield Finding("certificate", endpoint, "fault", words, do)


def _closed(endpoint: str) -> str:
    """Why no connection can be made; "" if it can."""
    _, host, port = parts_of(endpoint)
    try:
        with socket.create_connection((host.strip("[]"), int(port.split("#")[0])), CONNECT_S):
            return ""
    except OSError as error:
        return f"{endpoint} cannot be reached: {error.strerror or error}"


def _examine_node(crew: Crew, name: str) -> Iterator[Finding]:
    began = time.time()
    try:
        (welcome,) = crew.ask(name, msg.Hello(), ANSWER_S)
    except WeftError as error:
        yield Finding(
            "presence", name, "fault", str(error), f"Look at the output of `weft node` on {name}"
        )
        return
    assert isinstance(welcome, msg.Welcome)
    yield judge_versions(name, (), welcome.torch, welcome.version)
    if welcome.date:
        yield judge_apart(name, welcome.date - (began + time.time()) / 2)
    yield judge_memory(name, welcome.free_mb)
    if welcome.busy:
        yield Finding("speed", name, "ok", "not measured: it takes part in a run")
        return
    (probed,) = crew.ask(name, msg.ProbeCompute(), PROBE_S)
    assert isinstance(probed, msg.Probed)
    yield judge_speed(name, probed.gflops)


def judge_apart(device: str, ahead_s: float) -> Finding:
    """Whether a node's calendar agrees with this machine's."""
    if abs(ahead_s) <= APART_S:
        return Finding("clock", device, "ok", "its clock agrees with this machine's")
    way = "ahead of" if ahead_s > 0 else "behind"
    says = f"its clock is {abs(ahead_s):.0f} s {way} this machine's"
    do = f"Type `timedatectl set-ntp true` on {device}, or here if the wrong clock is here"
    return Finding("clock", device, "fault", says, do)


def _ways(crew: Crew, names: Sequence[str]) -> Iterator[Finding]:
    """Each pair of nodes, both ways. The nodes that take part in a run are left alone."""
    try:
        reached = Survey(crew, names).reached()
    except WeftError as error:
        yield Finding("port", "fleet", "warning", f"the ways between nodes were not tried: {error}")
        return
    for (first, second), works in reached.items():
        if not works:
            do = f"Open the port of {second}'s node for {first}, or let both --join a third node"
            yield Finding("port", first, "fault", f"{first} gets no answer from {second}", do)
    if reached and all(reached.values()):
        yield Finding("port", "fleet", "ok", f"{', '.join(names)} reach each other, both ways")
