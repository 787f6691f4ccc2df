"""The loom: random draws from the whole product, each checked for what must always hold.

    python benchmarks/loom.py --seed 1 --draws 5000 --runs 300

Reading order:

    draw        what one draw is (plain data), and how it is drawn from a seed and a number
    networks    generated networks and profiles
    fleets      generated fleets
    settings    values for every option in the registry
    checks      what must hold of a plan, its program and its price
    running     what must hold of a real run, on emulated devices
    shrink      a failing draw made small
    weave       many draws, one table

Nothing in Weft imports this package; it stands on the public front (`weft.api`, `weft.train`,
`weft.serve`), the program and the simulator.
"""
