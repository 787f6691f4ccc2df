"""Plain connections for tensors, beside Zenoh. Read in this order:

sockets   the settings of a connection
records   how a message looks on a connection, in clear or encrypted
tickets   how a device asks another one, over Zenoh, for leave to connect
opening   from a neighbour's name to a connection
line      the sending end of a connection
way_out   which messages leave on a line, and which through Zenoh
door      the receiving end: one thread for all connections of a node
caller    one connection at the receiving end
pool      memory for payloads that is used again

Only `fabric` and `channel` use it. A neighbour that has no door, or whose door cannot be reached, gets its
tensors through Zenoh.
"""
