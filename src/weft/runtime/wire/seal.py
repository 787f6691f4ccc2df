"""A run's key: every command, report and tensor header of a run carries a seal made with it.

    secret = RunSecret()                    # where the run is
    keys = secret.keys("pi")                # goes to pi with its job
    seal = sealed(keys.device, REPORT, data, count)     # at pi
    count = check_seal(secret.keys("pi").device, REPORT, data, seal)      # BadMessage if it is not pi's
    replays.take("pi", count)               # False: it was here before

All devices of a run share the key for tensors. Beside it each has one of its own, for commands and reports,
so that no device can speak for another one or for the run.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
import struct
import threading

from msgspec import Struct

from weft.runtime.wire.frames import BadMessage

COMMAND, REPLY, REPORT, TENSOR = b"weft command", b"weft reply", b"weft report", b"weft tensor"
KEY_BYTES = 32
MAC_BYTES = 16
SEAL_BYTES = 8 + MAC_BYTES
WHOLE = 64 * 1024  # longer data (weights, copies) are hashed by Poly1305 first: ten times as fast
WINDOW = 4096  # messages by which one may be late
WHOLE_WINDOW = (1 << WINDOW) - 1
LIFE_BITS = 40  # of a number; what is above them tells the lives of a sender apart
LIVES = 64  # of one sender in a run
SENDERS = 4096  # of a run; their names come with the messages


class RunKeys(Struct, frozen=True, array_like=True):
    """What a device gets with its job."""

    device: bytes = b""  # its own: for commands to it and reports from it
    tensors: bytes = b""  # of all devices of the run

    @property
    def whole(self) -> bool:
        return len(self.device) == len(self.tensors) == KEY_BYTES


class RunSecret:
    """The secret of a run, from which the keys of its devices are made. It stays where the run is."""

    def __init__(self, root: bytes | None = None) -> None:
        self.root = root or secrets.token_bytes(KEY_BYTES)
        self.tensors = self._derived("tensors")

    def keys(self, device: str) -> RunKeys:
        """The keys of a device."""
        return RunKeys(self._derived(f"device {device}"), self.tensors)

    def _derived(self, what: str) -> bytes:
        return hashlib.blake2b(what.encode(), key=self.root, digest_size=KEY_BYTES).digest()


class Numbers:
    """Numbers for one sender's messages. A sender that starts again begins somewhere else."""

    def __init__(self) -> None:
        self._numbers = itertools.count((secrets.randbits(22) << LIFE_BITS) + 1)

    def next(self) -> int:
        return next(self._numbers)


class Replays:
    """Tells messages that were here before, by their sender and number. Any thread may ask: messages of one
    sender come through Zenoh and on a line at the same time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._lives: dict[str, int] = {}  # of each sender
        self._newest: dict[tuple[str, int], int] = {}
        self._seen: dict[tuple[str, int], int] = {}  # bit i: the newest - i was here

    def take(self, sender: str, count: int) -> bool:
        """Whether this is the first message with this number."""
        life = (sender, count >> LIFE_BITS)
        with self._guard:
            newest = self._newest.get(life)
            if newest is None:
                lives = self._lives.get(sender, 0)
                if lives >= LIVES or (not lives and len(self._lives) >= SENDERS):
                    return False
                self._lives[sender] = lives + 1
                self._newest[life], self._seen[life] = count, 1
                return True
            ahead = count - newest
            if ahead > 0:
                seen = self._seen[life] << ahead if ahead < WINDOW else 0
                self._seen[life] = (seen | 1) & WHOLE_WINDOW
                self._newest[life] = count
                return True
            bit = 1 << -ahead
            if -ahead >= WINDOW or self._seen[life] & bit:
                return False
            self._seen[life] |= bit
            return True


def digest_of(secret: str) -> str:
    """What may be known of a secret: who shows the secret later shows that he had it."""
    return hashlib.blake2b(secret.encode(), digest_size=KEY_BYTES, person=b"weft heir").hexdigest()


def sealed(key: bytes, what: bytes, data: bytes, count: int) -> bytes:
    """The seal of a command, a reply or a report."""
    number = struct.pack("<Q", count)
    return number + _mac(key, what, _covered(key, data) + number)


def check_seal(key: bytes, what: bytes, data: bytes, seal: bytes) -> int:
    """The number of a message. BadMessage where its seal is missing or wrong."""
    number, mac = seal[:8], seal[8:]
    if len(seal) != SEAL_BYTES or not hmac.compare_digest(
        mac, _mac(key, what, _covered(key, data) + number)
    ):
        raise BadMessage("it does not carry the run's key")
    (count,) = struct.unpack("<Q", number)
    return int(count)


def seal_header(key: bytes, header: bytes) -> bytes:
    """A tensor's header and its seal. The number is in the header."""
    return header + _mac(key, TENSOR, header)


def split_header(attachment: bytes) -> tuple[bytes, bytes]:
    """(header, seal); nothing is checked yet."""
    return attachment[:-MAC_BYTES], attachment[-MAC_BYTES:]


def header_is_sealed(key: bytes, header: bytes, mac: bytes) -> bool:
    """Whether a header carries the run's key."""
    return hmac.compare_digest(mac, _mac(key, TENSOR, header))


def _covered(key: bytes, data: bytes) -> bytes:
    """What the seal is made of: the data, or a keyed hash of all of it and its length.

    Poly1305 alone would need a new key for each message. Here its result is never shown: it only goes into
    the seal, so one key, made from the run's, serves for all messages.
    """
    if len(data) <= WHOLE:
        return data
    from cryptography.hazmat.primitives.poly1305 import Poly1305  # only runs with weights need it

    hash_key = hashlib.blake2b(b"long data", key=key, digest_size=KEY_BYTES).digest()
    return Poly1305.generate_tag(hash_key, data) + struct.pack("<Q", len(data))


def _mac(key: bytes, what: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=MAC_BYTES, person=what).digest()
