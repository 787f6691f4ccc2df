"""The run ends with the error that says who is gone: what `--on-loss stop` asks for."""

from __future__ import annotations

from weft.runtime.run.recovery.protocol import Recovery


class Stop(Recovery):
    """The base does just that."""
