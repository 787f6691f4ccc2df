"""What a device does about values of the layer before that got lost on their way.

`zero`: they count as zeros, the bias still applies. `own`: the device's own neurons of that layer stand
in for them, cyclically. `none`: the batch is given up.
"""

from __future__ import annotations

from typing import Literal

LostValues = Literal["zero", "own", "none"]
