"""Weft's errors. Failed work and wrong input are separate, because scripts treat them differently."""


class WeftError(Exception):
    """The work failed (exit code 1): a device died, a deadline passed, a plan does not fit."""

    exit_code = 1


class InputError(WeftError):
    """The request cannot be carried out (exit code 2): a bad file, an unknown name, a wrong value.

    The message names the place, the wrong value, and what is allowed.
    """

    exit_code = 2


class LostDevice(WeftError):
    """A device died or stayed silent past its deadline; `device` says which."""

    def __init__(self, device: str, message: str) -> None:
        super().__init__(message)
        self.device = device
