# SPDX-License-Identifier: Apache-2.0
"""Which part owns which node, and what parts have to send each other: NumPy on the host alone."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

# --- Owners ---------------------------------------------------------------------------------------


def contiguous(weights: np.ndarray, num_parts: int) -> np.ndarray:
    """Cut nodes in their own order into blocks of about equal weight; the owner of each node."""
    middle = np.cumsum(weights) - weights / 2
    owner = np.floor(middle * num_parts / max(float(weights.sum()), 1.0)).astype(np.int64)
    return np.clip(owner, 0, num_parts - 1)


def bisected(ends: np.ndarray, weights: np.ndarray, num_parts: int) -> np.ndarray:
    """Halve the nodes again and again along levels of a breadth-first search; the owners.

    All sets of one depth are searched at once: twice, from the first node of each and then from the
    last one reached, which lies at an end of the set. What the search does not reach (isolated
    nodes, other components) follows in the order of the nodes.

    Args:
        ends: ``[2, m]``, the two nodes of each edge.
        weights: ``[n]``, the work that a node makes.
        num_parts: how many sets to end with; halves are of equal share if it is odd, too.
    """
    n = len(weights)
    group = np.zeros(n, np.int64)
    shares = np.array([num_parts])
    while shares.max() > 1:
        inside = ends[:, group[ends[0]] == group[ends[1]]]
        indptr, other = _neighbours(inside, n)
        first = _first_of_groups(np.arange(n), group, len(shares))
        distance = _search(indptr, other, first, n)
        reached = np.flatnonzero(distance >= 0)
        by_distance = reached[np.lexsort((-reached, -distance[reached]))]
        distance = _search(indptr, other, _first_of_groups(by_distance, group, len(shares)), n)
        level = np.where(distance < 0, n, distance)
        order = np.lexsort((level, group))  # stable: nodes of a level keep their order
        halves = np.stack([shares - shares // 2, shares // 2], axis=1)
        upper = np.empty(n, np.int64)
        upper[order] = _upper_half(weights[order], group[order], halves)
        kept = halves.ravel() > 0
        renamed = np.cumsum(kept) - 1
        group, shares = renamed[2 * group + upper], halves.ravel()[kept]
    return group


def _upper_half(weights: np.ndarray, group: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """Say which nodes, sorted by group, lie beyond the first half's share of their group."""
    total = np.bincount(group, weights, len(halves))
    start = np.cumsum(total) - total
    middle = np.cumsum(weights) - weights / 2 - start[group]
    return (middle > (total * halves[:, 0] / halves.sum(axis=1))[group]).astype(np.int64)


def _neighbours(ends: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the CSR of the edges in both directions."""
    start, end = np.concatenate([ends, ends[::-1]], axis=1)
    order = np.argsort(start, kind="stable")
    count = np.bincount(start, minlength=num_nodes)
    return np.concatenate([[0], np.cumsum(count)]), end[order]


def _first_of_groups(nodes: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """Return of each group the node that stands first in `nodes`, if there is one."""
    found = np.full(num_groups, -1, np.int64)
    found[group[nodes[::-1]]] = nodes[::-1]
    return found[found >= 0]


def _search(indptr: np.ndarray, other: np.ndarray, start: np.ndarray, n: int) -> np.ndarray:
    """Return the number of edges from the nearest of `start` to each node; -1 if there is none."""
    distance = np.full(n, -1, np.int64)
    distance[start] = 0
    level, front = 0, start
    while front.size:
        level += 1
        count = indptr[front + 1] - indptr[front]
        place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        found = other[np.repeat(indptr[front], count) + place]
        front = np.unique(found[distance[found] < 0])
        distance[front] = level
    return distance


# Of each round the size of its block, and the pairs (source, target) of parts.
Rounds = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]

# --- Layout ---------------------------------------------------------------------------------------


class Placement(NamedTuple):
    """Where rows stand: owner and local row of each, and the rows of each part, -1 as padding."""

    owner: np.ndarray
    local: np.ndarray
    ids: np.ndarray  # [num_parts, size]


def place(owner: np.ndarray, num_parts: int) -> Placement:
    """Give each row its place in its owner's block, in the order of the rows; -1: no owner."""
    kept = np.flatnonzero(owner >= 0)
    order = kept[np.argsort(owner[kept], kind="stable")]
    count = np.bincount(owner[kept], minlength=num_parts)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    local = np.full(len(owner), -1, np.int64)
    local[order] = rank
    ids = np.full((num_parts, max(int(count.max(initial=0)), 1)), -1, np.int32)
    ids[owner[order], rank] = order
    return Placement(owner, local, ids)


class Lanes(NamedTuple):
    """Where items stand in what parts send each other.

    One all_to_all has equal blocks for all pairs of parts. Rounds are permutations of parts, each
    with a block of its own size.
    """

    slot: np.ndarray  # of each item, its place in the block of its two parts
    start: np.ndarray | None  # of each item, where the block of its round begins
    block: int  # the size of the blocks of an all_to_all
    length: int  # of what one part sends, padding included
    rounds: Rounds | None
    pairs: np.ndarray  # [num_parts, num_parts], how many items of row p go to column q

    def at(self, other: np.ndarray) -> np.ndarray:
        """Return where items stand at one end; `other` is the part at the other end."""
        return self.slot + (other * self.block if self.start is None else self.start)

    @property
    def padded(self) -> int:
        """How many slots all parts send to others."""
        if self.rounds is not None:
            return sum(size * len(pairs) for size, pairs in self.rounds)
        return self.block * len(self.pairs) * (len(self.pairs) - 1)


def lanes(source: np.ndarray, target: np.ndarray, num_parts: int, in_rounds: bool) -> Lanes:
    """Number the items of each pair of parts, in their order."""
    pair = source * num_parts + target
    order = np.argsort(pair, kind="stable")
    count = np.bincount(pair, minlength=num_parts * num_parts)
    slot = np.empty(len(pair), np.int64)
    slot[order] = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
    pairs = count.reshape(num_parts, num_parts)
    if not in_rounds:
        block = int(count.max(initial=0))
        return Lanes(slot, None, block, block * num_parts, None, pairs)
    rounds, start = _schedule(count, num_parts)
    return Lanes(slot, start[pair], 0, sum(size for size, _ in rounds), rounds, pairs)


def _schedule(count: np.ndarray, num_parts: int) -> tuple[Rounds, np.ndarray]:
    """Put each pair that has items into the first round where both of its parts are free.

    Pairs with many items come first, so that those of one round have about as many.
    """
    start = np.zeros(len(count), np.int64)
    busy = [[0] * num_parts, [0] * num_parts]  # bit t: sends, receives in round t
    rounds: list[tuple[int, list[tuple[int, int]]]] = []
    begin = [0]
    used = np.flatnonzero(count)
    for pair in used[np.argsort(-count[used], kind="stable")].tolist():
        p, q = divmod(pair, num_parts)
        taken = busy[0][p] | busy[1][q]
        t = (~taken & (taken + 1)).bit_length() - 1
        busy[0][p] |= 1 << t
        busy[1][q] |= 1 << t
        if t == len(rounds):
            rounds.append((int(count[pair]), []))
            begin.append(begin[-1] + int(count[pair]))
        rounds[t][1].append((p, q))
        start[pair] = begin[t]
    return tuple((size, tuple(pairs)) for size, pairs in rounds), start


@dataclasses.dataclass(frozen=True)
class Side:
    """One end of the edges, as stacked arrays: rows that a part owns, and what they read.

    row_ids ``[num_parts, num_rows]``, edge_ids ``[num_parts, m]``: the numbers of what a part owns
    in the whole graph. rows, others ``[num_parts, m]``: of each such edge its row, and where the
    other end stands in [own rows | halo]. All are -1 as padding. send ``[num_parts, length]``: the
    rows to send for the other parts' halos. edge_send: the edges to send to the owners
    of the other ends. edge_source: where each edge stands in [the other side's own edges | received
    ones].
    """

    row_ids: np.ndarray
    edge_ids: np.ndarray
    rows: np.ndarray
    others: np.ndarray
    num_rows: int
    num_own: int  # of num_others, the rows that the part owns
    num_others: int
    send: np.ndarray
    edge_send: np.ndarray
    edge_source: np.ndarray
    halo: Lanes  # of the rows that parts send


def sides(
    senders: np.ndarray,
    receivers: np.ndarray,
    at_sender: Placement,
    at_receiver: Placement,
    in_rounds: bool,
) -> tuple[Side, Side, Lanes]:
    """Lay out both sides: by receiver and by sender.

    Args:
        senders: ``[m]``; an edge counts if both of its ends are 0 or more.
        receivers: ``[m]``.
        at_sender: the placement of the senders.
        at_receiver: the placement of the receivers.
        in_rounds: whether parts send in rounds, or else all at once.

    Returns:
        The side of the receivers, the side of the senders, and the lanes of cut edges, from the
        part of the receiver to that of the sender.
    """
    num_parts = len(at_sender.ids)
    there = (senders >= 0) & (receivers >= 0)
    ends = [np.where(there, ids, 0) for ids in (receivers, senders)]
    placements = at_receiver, at_sender
    owners = [np.where(there, p.owner[e], -1) for p, e in zip(placements, ends, strict=True)]
    edges = [place(owner, num_parts) for owner in owners]
    cut = np.flatnonzero(owners[0] != owners[1])
    crossing = lanes(owners[0][cut], owners[1][cut], num_parts, in_rounds)
    found = []
    for k in (0, 1):
        row, other = placements[k], placements[1 - k]
        mine, theirs = owners[k][cut], owners[1 - k][cut]
        # Each row of another part is received once, whatever the number of edges that read it.
        key, inverse = np.unique(mine * len(other.owner) + ends[1 - k][cut], return_inverse=True)
        reader, node = np.divmod(key, len(other.owner)) if len(key) else (key, key)
        halo = lanes(other.owner[node], reader, num_parts, in_rounds)
        send = np.full((num_parts, halo.length), -1, np.int32)
        send[other.owner[node], halo.at(reader)] = other.local[node]
        where = other.local[ends[1 - k]]
        position = other.ids.shape[1] + halo.at(other.owner[node])
        where[cut] = position[inverse]
        edge_send = np.full((num_parts, crossing.length), -1, np.int32)
        edge_send[mine, crossing.at(theirs)] = edges[k].local[cut]
        source = edges[1 - k].local.copy()
        source[cut] = edges[1 - k].ids.shape[1] + crossing.at(theirs)
        found.append(
            Side(
                row_ids=row.ids,
                edge_ids=edges[k].ids,
                rows=_spread(row.local[ends[k]], edges[k]),
                others=_spread(where, edges[k]),
                num_rows=row.ids.shape[1],
                num_own=other.ids.shape[1],
                num_others=other.ids.shape[1] + halo.length,
                send=send,
                edge_send=edge_send,
                edge_source=_spread(source, edges[k]),
                halo=halo,
            )
        )
    return found[0], found[1], crossing


def _spread(values: np.ndarray, edges: Placement) -> np.ndarray:
    """Bring values of edges to the parts that own them; -1 as padding."""
    padded = np.append(values, -1)
    return padded[edges.ids].astype(np.int32)  # -1 reads the end


def balance(counts: Any) -> dict[str, float]:
    """Say how evenly a count is spread over parts."""
    counts = np.asarray(counts)
    mean = float(counts.mean())
    return {
        "total": int(counts.sum()),
        "max": int(counts.max()),
        "mean": mean,
        "max_over_mean": float(counts.max()) / mean if mean else 1.0,
    }
