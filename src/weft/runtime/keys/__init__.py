"""A fleet's keys: who belongs to it, how they prove it, and what each of them may do.

Read in this order: `members.py` (the list of a fleet's devices, signed by its owner), `certificates.py` (it
needs the package `cryptography`), `folder.py` (the files of a fleet on this machine),
`invite.py` (the line that is pasted on a device), `owner.py` (new, invite, revoke, renew), `fence.py` (the
rules that Zenoh applies), `handshake.py` (why a connection was refused).

The commands and `runtime.wire` import this package. It imports `weft.errors` and nothing else of Weft.
"""
