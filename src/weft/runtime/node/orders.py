"""A command as a node got it, and the proof that it comes from the run that it speaks of."""

from __future__ import annotations

from typing import Any

from weft.errors import InputError, WeftError
from weft.runtime.wire import messages as msg
from weft.runtime.wire.frames import BadMessage
from weft.runtime.wire.seal import COMMAND as COMMAND_SEAL
from weft.runtime.wire.seal import REPLY, Replays, RunKeys, check_seal, sealed


class Forged(WeftError):
    """A command for the run under way that does not carry the run's key, or that was here before."""


class Forgotten(WeftError):
    """A command for a run that this device does not know: its node has been restarted since."""


class Order:
    """A command, its bytes and its seal. Who gives an order of a run shows that he has the run's key."""

    def __init__(self, command: msg.Command, payload: bytes, seal: bytes) -> None:
        self.command = command
        self._payload, self._seal = payload, seal
        self._key = b""  # for the seals of replies
        self._count = 0
        self._checked = False

    @property
    def size(self) -> int:
        """Bytes of the command as it came."""
        return len(self._payload)

    @property
    def run(self) -> str | None:
        return msg.run_of(self.command)

    def check(self, keys: RunKeys, replays: Replays) -> None:
        """Raises Forged where the order does not carry these keys, of the run that it speaks of."""
        if self._checked:
            return
        try:
            self._count = check_seal(keys.device, COMMAND_SEAL, self._payload, self._seal)
        except BadMessage:
            raise Forged("the command does not carry the key of the run under way") from None
        if not replays.take("", self._count):
            raise Forged("the command was carried out before: it is a replay")
        self._key, self._checked = keys.device, True

    def reply(self, query: Any, reply: msg.Reply) -> None:
        """Sends an answer. That of an order of a run carries the device's key."""
        payload = msg.pack(reply)
        seal = sealed(self._key, REPLY, payload, self._count) if self._key else None
        query.reply(query.key_expr, payload, attachment=seal)


def failed(name: str, error: Exception, version: int = 0) -> msg.Failed:
    """The report of an error that ends a device's work on a plan, or of a command that it refuses."""
    text = str(error) or type(error).__name__
    if not isinstance(error, WeftError):
        text = f"{type(error).__name__}: {text}"
    return msg.Failed(
        name, text[:2000], isinstance(error, InputError), isinstance(error, Forgotten), version
    )
