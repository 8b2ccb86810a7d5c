# SPDX-License-Identifier: Apache-2.0
"""Reader of the TNTP text format: net, trips, flow and node files, each given by its path.

The format in the wild: `<KEY> value` metadata up to `<END OF METADATA>` (absent in flow and node
files), `~` comments, `;` at row ends, tabs or blanks between columns, header rows of words.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from bench.demand import Demand
from bench.networks import Network

EXTENT = 120.0  # blocks along the longer side, whatever the unit of the node file
UNLIMITED = 10.0  # capacities above 10 medians (99,999 and the like) mean "no limit"


def read_tntp_network(net: Path, node: Path | None = None) -> Network:
    """Network of a net file, with the coordinates of a node file if there is one.

    Links keep the file's order. Capacities that mean "no limit" are cut to 10 times the median
    of the links between through nodes, so that flow / capacity stays a number worth learning.
    """
    metadata, rows = _numeric_rows(net, columns=5)
    num_nodes = int(metadata.get("NUMBER OF NODES", rows[:, :2].max()))
    num_zones = int(metadata.get("NUMBER OF ZONES", num_nodes))
    first_through = max(int(metadata.get("FIRST THRU NODE", 1)) - 1, 0)
    ends = rows[:, :2].astype(np.int64) - 1
    if ends.min() < 0 or ends.max() >= num_nodes:
        raise ValueError(f"{net}: a link names a node outside 1 to {num_nodes}.")
    through = (ends >= first_through).all(axis=1)
    limit = UNLIMITED * float(np.median(rows[through, 2] if through.any() else rows[:, 2]))
    coordinates = np.zeros((num_nodes, 2)) if node is None else _coordinates(node, num_nodes)
    return Network(
        name=net.stem.removesuffix("_net"),
        num_nodes=num_nodes,
        senders=ends[:, 0].astype(np.int32),
        receivers=ends[:, 1].astype(np.int32),
        capacity=np.clip(rows[:, 2], 1.0, limit),
        time=rows[:, 4].copy(),
        coordinates=coordinates,
        zones=np.arange(num_zones, dtype=np.int32),
        first_through=first_through,
        block_per_unit=EXTENT / max(float(np.ptp(coordinates, axis=0).max()), 1e-9),
    )


def read_tntp_trips(trips: Path, num_zones: int) -> Demand:
    """Demand of a trips file: positive, between different zones, by (origin, destination)."""
    origins, destinations, amounts = [], [], []
    origin = None
    for line in _lines(trips):
        start = re.match(r"origin\s+(\d+)", line, re.IGNORECASE)
        if start:
            origin = int(start.group(1)) - 1
            line = line[start.end() :]
        for destination, amount in re.findall(r"(\d+)\s*:\s*([-+.\deE]+)", line):
            if origin is None:
                raise ValueError(f"{trips}: trips stand before the first 'Origin' line.")
            origins.append(origin)
            destinations.append(int(destination) - 1)
            amounts.append(float(amount))
    pairs = np.array([origins, destinations], np.int32).reshape(2, -1)
    amount = np.array(amounts)
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < num_zones:
        raise ValueError(f"{trips}: a trip names a zone outside 1 to {num_zones}.")
    kept = np.flatnonzero((amount > 0) & (pairs[0] != pairs[1]))
    kept = kept[np.lexsort((pairs[1, kept], pairs[0, kept]))]
    return Demand(pairs[0, kept], pairs[1, kept], amount[kept])


def read_tntp_flow(flow: Path, network: Network) -> np.ndarray:
    """Published flow of every link, float64 [m], matched by (from, to); parallel links by order."""
    _, rows = _numeric_rows(flow, columns=3)
    published: dict[tuple[int, int], list[float]] = {}
    for start, end, volume in rows[:, :3]:
        published.setdefault((int(start) - 1, int(end) - 1), []).append(float(volume))
    values = []
    for link in zip(network.senders.tolist(), network.receivers.tolist(), strict=True):
        if not published.get(link):
            raise ValueError(f"{flow}: no flow for the link {link[0] + 1} -> {link[1] + 1}.")
        values.append(published[link].pop(0))
    return np.array(values)


def _coordinates(node: Path, num_nodes: int) -> np.ndarray:
    _, rows = _numeric_rows(node, columns=3)
    coordinates = np.zeros((num_nodes, 2))
    coordinates[rows[:, 0].astype(np.int64) - 1] = rows[:, 1:3]
    return coordinates


def _lines(path: Path) -> list[str]:
    """Lines without comments and outer blanks, empty ones dropped."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    lines = (line.split("~")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _numeric_rows(path: Path, columns: int) -> tuple[dict[str, str], np.ndarray]:
    """Metadata, and the first `columns` numbers of every row that starts with so many numbers."""
    metadata: dict[str, str] = {}
    rows = []
    for line in _lines(path):
        entry = re.match(r"<([^>]*)>\s*(.*)", line)
        if entry:
            metadata[entry.group(1).strip().upper()] = entry.group(2).strip()
            continue
        fields = line.replace(";", " ").replace(",", " ").split()[:columns]
        try:
            numbers = [float(field) for field in fields]
        except ValueError:
            continue  # a header row of words
        if len(numbers) == columns:
            rows.append(numbers)
    if not rows:
        raise ValueError(f"{path}: no row of {columns} numbers; is this a TNTP file?")
    return metadata, np.array(rows)
