"""`weft doctor`: what may go wrong on a device or in a fleet, looked at before a run, with the remedy.

findings.py   one result of a check: how it is, in words, and what to do
device.py     the checks of this device: versions, calendar, certificates, ports, memory, speed
fleet.py      the checks of the nodes that are there, and between them

Only `commands/` may import it.
"""
