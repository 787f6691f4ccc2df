"""The papers' evaluations beside ours. A new paper is a folder here and one more name below.

A paper is imported only when it is asked for: some papers train, and other commands do not need torch.
"""

NAMES = ("coopai", "decoupled", "edgemove", "hiertrain", "stitchnet")
