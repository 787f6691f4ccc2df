"""What a device does when values of the layer before got lost.

`zero`: lost values count as zeros; the bias is still added. `own`: the device's own neurons of that layer
replace them, cyclically. `none`: the device skips the batch.
"""

from __future__ import annotations

from typing import Literal

LostValues = Literal["zero", "own", "none"]
