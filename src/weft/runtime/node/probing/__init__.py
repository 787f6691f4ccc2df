"""What a node measures, of itself and of its neighbours. Read in this order:

machine   its speed, its free memory, the layers of a network that it is sent
link      what a message costs, and how much a link carries under load
prober    asks other nodes while training goes on, and answers them
"""
