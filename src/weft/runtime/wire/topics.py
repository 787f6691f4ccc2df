"""The names under which a fleet's processes find each other in Zenoh."""


def control(group: str, node: str) -> str:
    """Where a node takes commands."""
    return f"{group}/control/{node}"


def alive(group: str, node: str, life: str) -> str:
    """The liveliness token of a node. A node that is started again has another life."""
    return f"{group}/alive/{node}/{life}"


def notice(group: str, node: str) -> str:
    """Where a node says that it has become faster."""
    return f"{group}/notice/{node}"


def report(group: str, run: str) -> str:
    """Where the nodes of a run report."""
    return f"{group}/report/{run}"


def answer(group: str, run: str) -> str:
    """Where the answers of a run go."""
    return f"{group}/answer/{run}"
