"""One run, seen from where the user typed. Read `train.py`, `run.py`, `dispatch.py` and `launch.py` first.

`workload/` says what is trained, `recovery/` what happens when a device is lost, `records/` what is written
down, `measuring/` what is measured on real nodes, `watch/` what users see while it runs, and `serving/` how
requests are answered.
"""
