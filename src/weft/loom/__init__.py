"""The loom: random draws from the whole product, each checked for what must always hold.

    python benchmarks/loom.py --seed 1 --draws 5000 --runs 300

Reading order:

    draw        what one draw is (plain data), and how it is drawn from a seed and a number
    networks    generated networks and profiles; `modules` builds them
    fleets      generated fleets
    settings    values for every option in the registry
    planned     a planned draw, and what became of it
    checks      what must hold of a plan, its program and its price
    computing   what a plan computes: `woven` executes its program in one process, `reference` trains alone
    running     what must hold of a real run, on emulated devices; `leftovers` is what it may leave behind
    shrink      a failing draw made small
    weave       many draws, one table

Nothing in Weft imports this package. It stands on planning, the program, the simulator, the nodes'
interpreter, `weft.train` and `weft.serve`.
"""
