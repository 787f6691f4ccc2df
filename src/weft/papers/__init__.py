"""The papers' evaluations beside ours. A new one is a module of this folder and one more name here.

They are imported when they are asked for: some of them train, and other commands need no torch.
"""

NAMES = ("coopai", "decoupled", "edgemove", "hiertrain", "stitchnet")
