"""The loom: random draws of networks, fleets, strategies and options. Each draw is checked.

    python benchmarks/loom.py --seed 1 --draws 5000 --runs 300

Reading order:

    draw        what one draw is (plain data), and how it is drawn from a seed and a number
    networks    generated networks and profiles; `modules` builds them
    fleets      generated fleets
    settings    values for every option in the registry
        planned     a planned draw, and its outcome
        checks      what must hold for a plan, its program and its price
    computing   what a plan computes: `woven` executes its program in one process, `reference` trains alone
        running     what must hold for a real run on emulated devices; `leftovers`: nothing may be left behind
        shrink      makes a failing draw small
    weave       many draws, one table

Nothing in Weft imports this package. It uses planning, the program, the simulator, the nodes' interpreter,
`weft.train` and `weft.serve`.
"""
