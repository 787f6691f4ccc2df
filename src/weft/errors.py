"""The two ways a call can go wrong, kept apart because scripts act on the difference."""


class WeftError(Exception):
    """The work failed (exit code 1): a device died, a deadline passed, a plan does not fit."""

    exit_code = 1


class InputError(WeftError):
    """What was asked for cannot be right (exit code 2): a bad file, an unknown name, a wrong value.

    The message says where it stands, the offending value, and what is allowed.
    """

    exit_code = 2


class LostDevice(WeftError):
    """A device died or stayed silent past its deadline; `device` says which."""

    def __init__(self, device: str, message: str) -> None:
        super().__init__(message)
        self.device = device
