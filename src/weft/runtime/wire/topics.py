"""The Zenoh keys that a fleet's processes use."""


def control(group: str, node: str) -> str:
    """The key on which a node takes commands."""
    return f"{group}/control/{node}"


def alive(group: str, node: str, life: str) -> str:
    """The liveliness token of a node. A node that is started again has another life."""
    return f"{group}/alive/{node}/{life}"


def beat(group: str, node: str) -> str:
    """The key on which a node publishes its heartbeats."""
    return f"{group}/beat/{node}"


def coordinator(group: str, run: str) -> str:
    """The liveliness token of the process that coordinates a run."""
    return f"{group}/coordinator/{run}"


def data(group: str, dest: str, sender: str, run: str) -> str:
    """The key of tensors of a run from one process to a node."""
    return f"{group}/data/{dest}/{sender}/{run}"


def all_data(group: str, dest: str) -> str:
    """The keys of all tensors to a node."""
    return f"{group}/data/{dest}/*/*"


def report(group: str, run: str, node: str) -> str:
    """The key on which a node of a run reports."""
    return f"{group}/report/{run}/{node}"


def answer(group: str, run: str, node: str) -> str:
    """The key on which a node sends the answers of a run."""
    return f"{group}/answer/{run}/{node}"


def echo(group: str, node: str) -> str:
    """The key on which a node sends back what other nodes send, so that they can measure the link."""
    return f"{group}/echo/{node}"


def door(group: str, node: str, sender: str) -> str:
    """The key on which a node answers a sender that wants a connection for tensors."""
    return f"{group}/door/{node}/{sender}"


def fence(group: str, node: str) -> str:
    """The key on which a node says whose certificates count."""
    return f"{group}/fence/{node}"
