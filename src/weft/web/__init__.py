"""The live page (`weft web`) and its sister in the terminal (`weft top`).

Read in this order:

    lines.py       files of JSON lines that grow while they are read: metrics and events
    folder.py      a run's folder as parts: run, fleet, plan, predicted, measured, curves, events, map
    planned.py     a plan as the page shows it
    gantt.py       a timeline as the rows and bars that the page draws
    what_if.py     the plan for a fleet that is a little different, and its price
    planner.py     the process that answers such questions, and its time limit
    feed.py        the parts that have changed since a page last heard of them
    prometheus.py  the same for Prometheus
    server.py      HTTP, the WebSocket, and who may use them
    terminal.py    the same parts as tables in a terminal
    static/        the page: plain ES modules, no build step, no request to other hosts

Everything comes from the files of a folder: neither of the two talks to a run or to its devices. `commands`
imports this package.
"""
