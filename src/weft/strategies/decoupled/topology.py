"""Which peer holds which classes, and which peers are neighbours.

    sets = overlapping(classes=10, overlap=1)     # ten peers with two classes; neighbours share one
    friends = topology("ring", len(sets))         # friends[0] == {1, 9}

A topology must be one connected graph. Peers that nobody reaches would train a network of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from weft.errors import InputError
from weft.plans.peers import reached

ClassSets = tuple[tuple[int, ...], ...]  # classes by peer
Neighbours = dict[int, frozenset[int]]  # by peer; if a is b's neighbour, b is a's

# The paper's "4N_5Cls" for ten classes, in the paper's order.
FOUR_OF_FIVE: ClassSets = ((9, 0, 1, 2, 3), (2, 3, 4, 5, 6), (5, 6, 7, 8, 9), (8, 9, 0, 1, 2))
TOPOLOGIES = ("ring", "mesh")


def overlapping(classes: int, overlap: int) -> ClassSets:
    """With n = overlap: floor(classes / n) peers on a ring, 2n classes each; neighbours share n.

    The last peer also gets the classes that are left over. InputError if n is not possible.

    >>> overlapping(7, 2)
    ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 0, 1, 6))
    """
    if not 1 <= overlap <= classes // 2:
        raise InputError(
            f"overlap = {overlap} is not allowed for {classes} classes; "
            f"1 to {classes // 2} are (a peer holds twice as many classes)"
        )
    count = classes // overlap
    dealt = count * overlap
    sets = [
        tuple((peer * overlap + i) % dealt for i in range(2 * overlap)) for peer in range(count)
    ]
    sets[-1] += tuple(range(dealt, classes))
    return tuple(sets)


def literal(text: str, classes: int) -> ClassSets:
    """The sets as a user writes them: `9,0,1/1,2,3` is two peers. InputError for other text.

    >>> literal("0,1/1,2", 3)
    ((0, 1), (1, 2))
    """
    try:
        sets = tuple(tuple(int(part) for part in group.split(",")) for group in text.split("/"))
    except ValueError:
        raise InputError(
            f"classes = {text!r} is not allowed; write numbers with commas and a slash between "
            "peers, such as 0,1,2/2,3,4"
        ) from None
    return checked(sets, classes)


def checked(sets: Sequence[Sequence[int]], classes: int) -> ClassSets:
    """The sets; InputError if a number is not a class of the network, or if nobody holds a class."""
    for peer, held in enumerate(sets):
        if not held or len(set(held)) != len(held) or not set(held) <= set(range(classes)):
            raise InputError(
                f"classes of peer {peer}: {list(held)} is not allowed; different numbers from 0 to "
                f"{classes - 1} are, at least one"
            )
    missing = sorted(set(range(classes)) - {label for held in sets for label in held})
    if missing:
        raise InputError(
            f"classes without an owner: {missing}; give each to at least one of the {len(sets)} peers"
        )
    return tuple(map(tuple, sets))


def owners(sets: Sequence[Collection[int]]) -> dict[int, tuple[int, ...]]:
    """By class, the peers that hold it."""
    labels = sorted({label for held in sets for label in held})
    return {label: tuple(p for p, held in enumerate(sets) if label in held) for label in labels}


def ring(peers: int) -> Neighbours:
    """Each peer is linked to the next one; the last to the first."""
    return from_edges(peers, ((p, (p + 1) % peers) for p in range(peers) if peers > 1))


def mesh(peers: int) -> Neighbours:
    """Each peer is linked to all others."""
    return from_edges(peers, ((p, q) for p in range(peers) for q in range(p)))


def topology(name: str, peers: int) -> Neighbours:
    """`ring`, `mesh`, or links by number such as `0-1,1-2`; InputError for other text."""
    if name == "ring":
        return ring(peers)
    if name == "mesh":
        return mesh(peers)
    try:
        pairs = [tuple(int(end) for end in link.split("-")) for link in name.split(",")]
        return from_edges(peers, [(a, b) for a, b in pairs])
    except ValueError:
        raise InputError(
            f"topology = {name!r} is not allowed; it must be ring, mesh, or links between peers by "
            "number such as 0-1,1-2"
        ) from None


def from_edges(peers: int, edges: Iterable[tuple[int, int]]) -> Neighbours:
    """The neighbours by peer from a list of links; InputError names peers that cannot be reached."""
    if peers < 1:
        raise InputError(f"{peers} peers are not allowed; at least 1 is needed")
    linked: dict[int, set[int]] = {p: set() for p in range(peers)}
    for a, b in edges:
        if a == b or a not in linked or b not in linked:
            raise InputError(
                f"link {a}-{b} is not allowed; it must join two different peers of 0 to {peers - 1}"
            )
        linked[a].add(b)
        linked[b].add(a)
    neighbours = {p: frozenset(near) for p, near in linked.items()}
    apart = sorted(set(neighbours) - reached(neighbours, 0))
    if apart:
        raise InputError(
            f"the topology is not one graph: peer 0 cannot reach {', '.join(map(str, apart))}; "
            "add links until every peer can reach every other"
        )
    return neighbours


def dealt(classes: int, peers: int) -> ClassSets:
    """Each class is held about twice. A peer's classes are a row, and neighbours on a ring share half."""
    if (classes, peers) == (10, 4):
        return FOUR_OF_FIVE
    return by_speed(classes, [1.0] * peers)


def by_speed(
    classes: int, speeds: Sequence[float], most: Sequence[int] | None = None, copies: float = 2.0
) -> ClassSets:
    """Faster peers get more classes: in proportion to speed, at most `most`; each class `copies` times.

    The classes lie on a circle. A peer takes a row of them, and the next peer begins inside that row, so
    that neighbours share some. A class that no peer took because of the limits goes to the peer with
    the fewest classes for its speed. InputError if no peer has room for it.

    >>> by_speed(6, [1.0, 1.0, 1.0])
    ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 0, 1))
    """
    limits = list(most) if most is not None else [classes] * len(speeds)
    if len(limits) != len(speeds) or not speeds or min(speeds) <= 0 or min(limits) < 1:
        raise InputError(
            f"speeds {list(speeds)} and most classes {limits}: one number above 0 is needed for each peer"
        )
    total = sum(speeds)
    sets: list[list[int]] = []
    begin = 0.0
    for speed, limit in zip(speeds, limits, strict=True):
        wanted = copies * classes * speed / total
        count = max(1, min(limit, classes, round(wanted)))
        sets.append([(round(begin) + i) % classes for i in range(count)])
        begin += wanted / copies
    for label in sorted(set(range(classes)) - {c for held in sets for c in held}):
        free = [p for p, held in enumerate(sets) if len(held) < min(limits[p], classes)]
        if not free:
            raise InputError(
                f"class {label} finds no owner: the peers may hold {limits} classes at most; "
                "add a peer, or memory"
            )
        sets[min(free, key=lambda p: len(sets[p]) / speeds[p])].append(label)
    return checked(sets, classes)
