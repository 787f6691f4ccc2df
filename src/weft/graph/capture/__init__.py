"""From an nn.Module to a Graph. Read `module.py` first, then `trace.py`, `export.py`, `rewrite.py`.

`export.py` calls `torch.export` with each part in its own mode (`modes.py`). `data_tests.py` replays tests of
data in Python. `functional.py` lets torch take a program apart where `rewrite.py` does not know an operator.
`signature.py` says what a module takes and returns. `cache.py` keeps the graphs of the zoo between commands.
"""
