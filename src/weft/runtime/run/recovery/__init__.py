"""What happens when a device is lost.

stop.py         the run ends with the error
go_back.py      survivors go back to the newest copy that all have, and repeat: as if nothing had been
clone.py        a swarm: lost units are cloned to others, and nothing is repeated
leave_out.py    peers: the others go on without it, and take it back when it returns
"""
