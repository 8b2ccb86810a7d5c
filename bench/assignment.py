# SPDX-License-Identifier: Apache-2.0
"""All-or-nothing assignment: every trip takes the quickest path, links count the vehicles."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from bench.demand import Demand
from bench.networks import Network

ORIGINS_AT_ONCE = 64  # bounds the [origins, nodes] tables of distances and predecessors
SHORTEST_TIME = 1e-4  # zero-time connectors would tie with each other


@dataclasses.dataclass(frozen=True)
class Router:
    """Shortest paths of one network that never pass through a node below `first_through`.

    Such a node keeps its in-links; its out-links start at a twin, numbered from num_nodes on,
    where the node's own trips begin: a path can end at the node or start at the twin, no more.
    """

    network: Network
    indptr: np.ndarray  # of the sparse matrix over nodes and twins
    heads: np.ndarray
    keys: np.ndarray  # tail * size + head of every entry, ascending
    order: np.ndarray  # links in (tail, head) order, parallel links side by side
    entry: np.ndarray  # the entry that each link of `order` belongs to

    @classmethod
    def of(cls, network: Network) -> Router:
        """Build the sparse structure once; scenarios only change times."""
        size = network.num_nodes + network.first_through
        tails = _start(network, network.senders.astype(np.int64))
        link_keys = tails * size + network.receivers
        order = np.argsort(link_keys, kind="stable")
        keys, entry = np.unique(link_keys[order], return_inverse=True)
        indptr = np.searchsorted(keys // size, np.arange(size + 1))
        return cls(network, indptr, keys % size, keys, order, entry)

    def assign(
        self, time: np.ndarray, demand: Demand, amounts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Flow float64 [m] of `amounts` [p] over the quickest paths at link times [m].

        Also which pairs have a path, bool [p]; the others add no flow. Pairs of `demand` must be
        grouped by origin.
        """
        size = len(self.indptr) - 1
        time = np.maximum(time, SHORTEST_TIME)[self.order]
        best = np.lexsort((time, self.entry))
        best = best[np.searchsorted(self.entry, np.arange(len(self.keys)))]
        graph = csr_array((time[best], self.heads, self.indptr), shape=(size, size))
        flow = np.zeros(len(self.keys))
        reached = np.zeros(demand.num_pairs, bool)
        origins, first = np.unique(demand.origins, return_index=True)
        first = np.append(first, demand.num_pairs)
        for start in range(0, len(origins), ORIGINS_AT_ONCE):
            some = origins[start : start + ORIGINS_AT_ONCE]
            pairs = slice(first[start], first[start + len(some)])
            roots = _start(self.network, some.astype(np.int64))
            before = dijkstra(graph, indices=roots, return_predecessors=True)[1]
            row = np.searchsorted(some, demand.origins[pairs])
            reached[pairs] = before[row, demand.destinations[pairs]] >= 0
            self._walk_back(flow, before, row, demand.destinations[pairs], amounts[pairs])
        links = np.zeros(self.network.num_links)
        links[self.order[best]] = flow
        return links, reached

    def _walk_back(
        self,
        flow: np.ndarray,
        before: np.ndarray,
        row: np.ndarray,
        node: np.ndarray,
        amount: np.ndarray,
    ) -> None:
        """Add every pair's amount to the entries on its path, from the destination backwards."""
        node = node.astype(np.int64)
        while len(node):
            previous = before[row, node].astype(np.int64)
            going = previous >= 0  # negative at the root, and at once where there is no path
            row, node, amount, previous = row[going], node[going], amount[going], previous[going]
            entry = np.searchsorted(self.keys, previous * (len(self.indptr) - 1) + node)
            flow += np.bincount(entry, weights=amount, minlength=len(flow))
            node = previous


def _start(network: Network, node: np.ndarray) -> np.ndarray:
    """Where links and trips that leave `node` start: its twin if no path may pass it."""
    return np.where(node < network.first_through, node + network.num_nodes, node)
