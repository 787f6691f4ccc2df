"""The names under which a fleet's processes find each other in Zenoh."""


def control(group: str, node: str) -> str:
    return f"{group}/control/{node}"


def alive(group: str, node: str) -> str:
    return f"{group}/alive/{node}"


def notice(group: str, node: str) -> str:
    return f"{group}/notice/{node}"


def report(group: str, run: str) -> str:
    return f"{group}/report/{run}"


def answer(group: str, run: str) -> str:
    return f"{group}/answer/{run}"
