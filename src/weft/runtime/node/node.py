"""The agent that runs on every device. It waits for a job, does its part, and reports the result.

    with Node("pi", Endpoints(join=("tcp/127.0.0.1:7447",))) as node:
        node.serve(stop)

It keeps nothing between runs and never executes received code: a job is data, and its operators are looked up
in a fixed table. A message that cannot be decoded is counted, logged and dropped.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import zenoh

from weft.errors import InputError, WeftError
from weft.graph.accelerator import PLAIN, Compute
from weft.runtime.node.assignment import KEEP_S, Assignment
from weft.runtime.node.coordinators import Coordinators
from weft.runtime.node.lane import Intake, Lane, Reply
from weft.runtime.node.orders import Forged, Order, failed
from weft.runtime.node.probing.machine import free_memory_mb, host_id, measure_layers, probe_compute
from weft.runtime.node.probing.prober import Prober
from weft.runtime.node.tensors import Values
from weft.runtime.wire import messages as msg
from weft.runtime.wire import topics as keys
from weft.runtime.wire.closing import Closing
from weft.runtime.wire.fabric import Fabric
from weft.runtime.wire.frames import BadMessage, Header, pack_header, pack_tensors
from weft.runtime.wire.keeper import Keeper
from weft.runtime.wire.limits import Seldom
from weft.runtime.wire.seal import COMMAND, REPORT, Numbers, check_seal, sealed
from weft.runtime.wire.session import Endpoints, door_hosts, open_session
from weft.runtime.wire.silence import BEAT_S
from weft.version import __version__

log = logging.getLogger("weft.node")

MAX_WHY = 2000  # letters
CLAIM_S = 60.0  # in which a run's coordinator must have shown itself
MAX_END = 64 * 1024  # bytes of a command that ends a run


class Node(Closing):
    """One device. `group` separates fleets that share a network. `scratch` is a folder that an emulated
    fleet's nodes share."""

    def __init__(
        self,
        name: str,
        endpoints: Endpoints,
        group: str = "weft",
        scratch: Path | None = None,
        compute: Compute = PLAIN,
    ) -> None:
        self.compute = compute
        self.name = name
        self.group = group
        self.session = open_session(endpoints)
        hosts, encrypted = door_hosts(endpoints), endpoints.keys is not None
        self.fabric = Fabric(self.session, group, name, scratch, hosts, encrypted)
        self.prober = Prober(self.fabric, self._report, self._report)
        self.bad_commands = 0
        self.assignment = Assignment(
            name, self.fabric, self.prober, self._report, self._emit, compute
        )
        self._log = Seldom(log)
        self._lane = Lane(self._answer, self._do)
        self._queries = Intake(goes_first=self._ends_the_run)
        self._numbers = Numbers()
        self._control, self._echo = (
            self.session.declare_queryable(
                key(group, name),
                zenoh.handlers.Callback(partial(self._queries.put, kind), indirect=False),
                complete=True,
            )
            for kind, key in (("control", keys.control), ("echo", keys.echo))
        )
        self._coordinators = Coordinators(self.session, group)
        # A configuration of one's own may have rules that hide them.
        self._sees_tokens = endpoints.config is None
        self._alive = self.session.liveliness().declare_token(
            keys.alive(group, name, secrets.token_hex(8))
        )
        self._closing = threading.Event()
        self._outdated = threading.Event()  # the session has to be opened again, or ended
        self._keeper: Keeper | None = None
        if endpoints.keys is not None and not endpoints.keys.is_owner:
            self._keeper = Keeper(self.session, endpoints.keys, self._is_busy, self._outdated.set)
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._beats.start()

    def close(self) -> None:
        self._closing.set()
        if self._keeper is not None:
            self._keeper.close()
        self.assignment.cancel("the node is closing")
        self._lane.close()
        self.assignment.end("the node is closing")
        self.prober.close()
        self.fabric.close()
        self._beats.join()
        self.session.close()

    def _beat(self) -> None:
        """Heartbeats, from a thread that does nothing else. One that finds no room on the way is dropped."""
        beats = self.session.declare_publisher(
            keys.beat(self.group, self.name),
            congestion_control=zenoh.CongestionControl.DROP,
            priority=zenoh.Priority.REAL_TIME,
            express=True,
        )
        while not self._closing.wait(BEAT_S):
            beats.put(b"")

    def serve(self, stop: threading.Event) -> None:
        """Carries out commands until `stop` is set, or until the fleet's list has changed and no run is under
        way: then the node has to be opened again. WeftError if this device may not go on."""
        # Tensors may share a message's read-only memory, because they are never written.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        while not stop.is_set() and not (self._outdated.is_set() and not self._is_busy()):
            self._lane.look()
            self._look_for_coordinator()
            query = self._queries.get(0.2)
            if query is None:
                continue
            order = self._decoded(query)
            if order is not None:
                self._hand_over(query, order)

        if self._keeper is not None and self._keeper.refused:
            raise WeftError(self._keeper.refused)

    def _look_for_coordinator(self) -> None:
        """A run whose coordinator is gone ends here. Its copies are kept for a while."""
        job, since = self.assignment.job, self.assignment.orphaned_s
        if job is None:
            return
        if not self._is_deserted(job.run):
            if since is not None:
                self.assignment.reclaim()
        elif since is None:
            self._log.warning("%s: the coordinator of run %s is gone", self.name, job.run)
            self.assignment.orphan(job.run)
        elif time.monotonic() > since + KEEP_S:
            self._lane.put_own(lambda: self._forget(job.run))

    def _is_deserted(self, run: str) -> bool:
        """Whether the coordinator is gone, or none has shown itself since the run was given: somebody could
        keep an open node busy for good with one message."""
        if self._coordinators.is_gone(run):
            return True
        late = time.monotonic() > self.assignment.given_s + CLAIM_S
        return self._sees_tokens and late and not self._coordinators.is_claimed(run)

    def _forget(self, run: str) -> None:
        if self.assignment.has(run) and self._is_deserted(run):
            self.assignment.forget("the coordinator of the run is gone")

    def _is_busy(self) -> bool:
        return self.assignment.job is not None

    def _hand_over(self, query: Any, order: Order) -> None:
        """Never waits. Who waits for something in a run that is cancelled is woken up at once."""
        command = order.command
        urgent = isinstance(command, (msg.Cancel, msg.End))
        genuine = False
        if isinstance(command, (msg.Cancel, msg.End)) and self.assignment.has(command.run):
            genuine = self._is_genuine(order)
            if genuine:
                self.assignment.cancel(_why(command), command.run)
        if genuine:  # whatever waits before it
            self._lane.put_urgent(query, order)
        elif isinstance(command, (msg.Hello, msg.Echo)):
            with query:
                self._answer(order, query)
        elif self._lane.is_full(order.size):
            with query:
                busy = WeftError(f"{self.name} has too many commands to carry out; try again later")
                query.reply_err(msg.pack(failed(self.name, busy)))
        elif urgent:
            self._lane.put_urgent(query, order)
        else:
            self._lane.put(query, order)

    def _ends_the_run(self, query: Any) -> bool:
        """Whether a query cancels or ends the run under way, and carries its key. Such a query does not wait
        behind those of a flood."""
        keys = self.assignment.keys
        if not keys.whole or None in (query.attachment, query.payload):
            return False
        if len(query.payload) > MAX_END:
            return False
        try:
            payload = query.payload.to_bytes()
            check_seal(keys.device, COMMAND, payload, query.attachment.to_bytes())
            return isinstance(msg.unpack_command(payload), (msg.Cancel, msg.End))
        except BadMessage:
            return False

    def _is_genuine(self, order: Order) -> bool:
        try:
            self.assignment.check(order)
        except Forged:
            return False
        return True

    def _decoded(self, query: Any) -> Order | None:
        try:
            if query.payload is None:
                raise BadMessage("it is empty")
            size = len(query.payload)
            if size > msg.MAX_COMMAND:  # judged before it is copied
                self.assignment.check_weights(size)
            payload = query.payload.to_bytes()
            seal = query.attachment.to_bytes() if query.attachment is not None else b""
            order = Order(msg.unpack_command(payload), payload, seal)
            if "/echo/" in str(query.key_expr) and not isinstance(order.command, msg.Echo):
                raise BadMessage("other devices may only ask for an echo")
            return order
        except BadMessage as error:
            self.bad_commands += 1
            self._log.warning("%s dropped a malformed command: %s", self.name, error)
            with query:
                query.reply_err(f"not a command: {error}"[:500])
        except InputError as error:
            with query:
                query.reply_err(msg.pack(failed(self.name, error)))
        return None

    def _do(self, order: Order) -> Reply:
        """Carries out a command now; its answer is sent later."""
        try:
            (reply,) = self._carry_out(order)
        except Exception as error:
            report = failed(self.name, error)
            return lambda query: query.reply_err(msg.pack(report))
        return lambda query: order.reply(query, reply)

    def _answer(self, order: Order, query: Any) -> None:
        try:
            for reply in self._carry_out(order):
                order.reply(query, reply)
        except WeftError as error:
            query.reply_err(msg.pack(failed(self.name, error)))
        except Exception as error:  # a bad job must not end the agent; the error is sent back
            self._log.warning(
                "%s could not carry out %s: %r", self.name, type(order.command).__name__, error
            )
            log.debug("the error", exc_info=True)
            query.reply_err(msg.pack(failed(self.name, error)))

    def _carry_out(self, order: Order) -> Iterator[msg.Reply]:
        self.assignment.check(order)
        command = order.command
        match command:
            case msg.Hello():
                yield self._welcome()
                return
            case msg.GetState():
                yield from self.assignment.state(command)
                return
            case msg.GetTimeline():
                yield self.assignment.timeline(command, {"bad_commands": self.bad_commands})
                return
            case msg.GetCopies():
                yield from self.assignment.copies(command)
                return
            case msg.Where():
                yield self.assignment.where(command.run)
                return
            case msg.ProbeCompute():
                yield msg.Probed(gflops=probe_compute())
                return
            case msg.MeasureLayers():
                if self.assignment.job is not None:
                    raise WeftError(
                        f"{self.name} is busy with a run: times measured now would be wrong; measure when "
                        "the run is over"
                    )
                yield measure_layers(command, self.compute)
                return
            case msg.Assign():
                self.assignment.assign(command)
            case msg.Weights():
                self.assignment.take_weights(command)
            case msg.Prepare():
                self.assignment.prepare(command.run)
            case msg.Run():
                self.assignment.start(command)
            case msg.GoBack():
                self.assignment.go_back(command)
            case msg.TestNetwork():
                self.assignment.own_job(command.run)
                self.prober.learn(command)
            case msg.ProbeServers():
                self.assignment.own_job(command.run)
                self.prober.ask(command)
            case msg.Echo():
                pass
            case msg.Cancel():
                self.assignment.cancel(_why(command), command.run)
            case msg.End():
                if self.assignment.has(command.run):
                    self.assignment.forget("the run is over")
        yield msg.Done()

    def _welcome(self) -> msg.Welcome:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return msg.Welcome(
            name=self.name,
            version=__version__,
            cores=os.cpu_count() or 1,
            memory_mb=pages / 2**20,
            clock=time.monotonic(),
            busy=self.assignment.job is not None,
            host=host_id(),
            waits_for=self.fabric.mailbox.waits_for,
            date=time.time(),
            torch=str(torch.__version__),
            free_mb=free_memory_mb(),
            compute=self.compute.name,
        )

    def _report(self, report: msg.Report, run: str = "") -> None:
        """Sends a report to the run under way. One of another run is dropped: a thread that goes on after the
        end of its run must not speak for the next one."""
        job = self.assignment.job
        if job is not None and run in ("", job.run):
            payload = msg.pack(report)
            self.session.put(
                keys.report(self.group, job.run, self.name),
                payload,
                attachment=self._seal(payload),
                congestion_control=zenoh.CongestionControl.BLOCK,
                # A copy is in nobody's way: tensors and other reports overtake it.
                priority=zenoh.Priority.BACKGROUND
                if isinstance(report, msg.Kept)
                else zenoh.Priority.DATA,
            )

    def _seal(self, data: bytes) -> bytes:
        return sealed(self.assignment.keys.device, REPORT, data, self._numbers.next())

    def _emit(self, job: msg.Job, step: int, micro: int, values: Values) -> None:
        if job is self.assignment.job:
            specs, payload = pack_tensors(values)
            header = Header(job.run, job.version, step, "answer", job.layers, micro,
                            self.name, "", len(payload), specs)  # fmt: skip
            packed = pack_header(header)
            self.session.put(
                keys.answer(self.group, job.run, self.name),
                payload,
                attachment=packed + self._seal(packed),
                congestion_control=zenoh.CongestionControl.BLOCK,
            )


def _why(command: msg.Cancel | msg.End) -> str:
    """Why a run is cancelled, in a few words: they are kept and told."""
    return command.why[:MAX_WHY] if isinstance(command, msg.Cancel) else "the run is over"
