# SPDX-License-Identifier: Apache-2.0
"""Index arrays from the field, read from a folder that is not part of this project.

JAX_INDEX_DATA names the folder; see `bench/README.md` for what it may hold. Whatever is absent is
left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bench.kernels.topology import Topology
from bench.tntp import read_tntp_network

SPATTER_EDGES = 2**20  # a trace is repeated up to about so many accesses
SPATTER_ROWS = 2**26


def data_folder() -> Path:
    """Return the folder of real inputs; it need not exist."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("JAX_INDEX_DATA", default))


def real_inputs(folder: Path | None = None) -> dict[str, Callable[[], Topology]]:
    """Name and loader of every real input found, cheap until a loader is called."""
    folder = data_folder() if folder is None else folder
    found: dict[str, Callable[[], Topology]] = {}
    for path in sorted([*folder.glob("planetoid/*.npz"), *folder.glob("graphs/*.npz")]):
        found[f"graph:{path.stem}"] = partial(_graph, path)
    for path in sorted(folder.glob("tntp/*_net.tntp")):
        name = path.stem.removesuffix("_net")
        found[f"road:{name}"] = partial(_road, path)
    for path in sorted(folder.glob("spatter/*.json")):
        if path.stem.endswith("_gpu"):
            continue  # the same access patterns, cut into longer pieces
        for k in range(len(json.loads(path.read_text()))):
            found[f"spatter:{path.stem}-{k}"] = partial(_spatter, path, k)
    return found


FEW = ("graph:ca-CondMat", "graph:pubmed", "road:ChicagoRegional", "spatter:amg-0")


def headline(names: list[str], few: bool = False) -> list[str]:
    """The real inputs of a short run: every graph, roads of size, one trace of each program."""
    if few:
        return [n for n in names if n in FEW]
    small = ("road:Anaheim", "road:SiouxFalls")
    return [
        n for n in names if n not in small and (not n.startswith("spatter") or n.endswith("-0"))
    ]


def _graph(path: Path) -> Topology:
    with np.load(path) as arrays:
        ids, n = arrays["receivers"].astype(np.int32), int(arrays["num_nodes"])
    return Topology(f"graph:{path.stem}", ids, n)


def _road(path: Path) -> Topology:
    network = read_tntp_network(path)
    return Topology(f"road:{network.name}", network.receivers, network.num_nodes)


def _spatter(path: Path, k: int) -> Topology:
    entry = json.loads(path.read_text())[k]
    pattern, delta = np.array(entry["pattern"], np.int64), int(entry["delta"])
    repeats = min(int(entry["count"]), max(SPATTER_EDGES // len(pattern), 1))
    if delta:
        repeats = min(repeats, max((SPATTER_ROWS - int(pattern.max())) // delta, 1))
    ids = (pattern + delta * np.arange(repeats, dtype=np.int64)[:, None]).ravel()
    return Topology(f"spatter:{path.stem}-{k}", ids.astype(np.int32), int(ids.max()) + 1)
