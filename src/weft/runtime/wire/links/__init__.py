"""How messages leave a device for one neighbour, and what an emulated link makes of them. Read in this order:

channel   a queue and its thread: one for each neighbour
shaping   when a message has left a link of a given rate; media that several devices share
changes   links and devices that change while a run goes on
trouble   what a script of faults does to an emulated device: links that are cut, computing that is slow

Which way a message takes to its neighbour is the matter of `carrier`.
"""
