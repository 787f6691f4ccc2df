"""What a run writes down and goes back to. Read `saves.py` and `record.py` (the folder) first.

`keeper.py` writes the folder while the run goes on, and `live.py` writes what a page shows. `copies.py` holds
the devices' copies of their weights, to which a run goes back. `plan_changes.py` records every plan.
`orphans.py` takes a run up from the copies that its nodes still have.
"""
