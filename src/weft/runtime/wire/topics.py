"""The Zenoh keys that a fleet's processes use."""


def control(group: str, node: str) -> str:
    """The key on which a node takes commands."""
    return f"{group}/control/{node}"


def alive(group: str, node: str, life: str) -> str:
    """The liveliness token of a node. A node that is started again has another life."""
    return f"{group}/alive/{node}/{life}"


def notice(group: str, node: str) -> str:
    """The key on which a node publishes that it has become faster."""
    return f"{group}/notice/{node}"


def beat(group: str, node: str) -> str:
    """The key on which a node publishes its heartbeats."""
    return f"{group}/beat/{node}"


def coordinator(group: str, run: str) -> str:
    """The liveliness token of the process that coordinates a run."""
    return f"{group}/coordinator/{run}"


def report(group: str, run: str) -> str:
    """The key on which the nodes of a run report."""
    return f"{group}/report/{run}"


def answer(group: str, run: str) -> str:
    """The key on which the answers of a run are sent."""
    return f"{group}/answer/{run}"
