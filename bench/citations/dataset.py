# SPDX-License-Identifier: Apache-2.0
"""A citation graph with the public Planetoid split, read from an npz file."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

DATASETS = {"cora": "Cora", "citeseer": "Citeseer"}  # file stem: title
FIELDS = (
    "senders", "receivers", "labels", "num_nodes", "num_classes", "num_features",
    "feature_indptr", "feature_indices", "feature_values",
    "train_nodes", "val_nodes", "test_nodes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CitationGraph:
    """n nodes, m edges with one self-loop a node among them, and sparse features.

    rows, columns int32 and values float32 [nnz]: the features, each row with sum 1 or empty.
    labels int32 [n]; -1 is unknown and in none of train, val, test (int32 node numbers).
    """

    name: str
    num_nodes: int
    num_classes: int
    num_features: int
    senders: np.ndarray
    receivers: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray

    def describe(self) -> dict[str, Any]:
        """Sizes, for the record."""
        return {
            "title": DATASETS.get(self.name, self.name),
            "nodes": self.num_nodes,
            "edges": len(self.senders),
            "features": self.num_features,
            "classes": self.num_classes,
            "train": len(self.train),
            "val": len(self.val),
            "test": len(self.test),
        }


def read_citation_graph(path: Path) -> CitationGraph:
    """Read and check one file; ValueError says what is wrong with it."""
    try:
        with np.load(path) as stored:
            missing = [name for name in FIELDS if name not in stored]
            if missing:
                raise ValueError(f"{path} has no array {missing[0]}")
            raw = {name: np.asarray(stored[name]) for name in FIELDS}
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is no npz file") from error
    n, classes, width = (int(raw[k]) for k in ("num_nodes", "num_classes", "num_features"))
    for name, limit in (
        ("senders", n), ("receivers", n), ("train_nodes", n), ("val_nodes", n), ("test_nodes", n),
        ("feature_indices", width),
    ):  # fmt: skip
        _check_range(path, name, raw[name], 0, limit)
    _check_range(path, "labels", raw["labels"], -1, classes)
    for name, size in (("labels", n), ("feature_indptr", n + 1)):
        if raw[name].shape != (size,):
            raise ValueError(f"{path}: {name} has shape {raw[name].shape}, not ({size},)")
    for name in ("train_nodes", "val_nodes", "test_nodes"):
        if not len(raw[name]) or (raw["labels"][raw[name]] < 0).any():
            raise ValueError(f"{path}: {name} is empty or holds a node with no label")
    senders, receivers = _with_self_loops(raw["senders"], raw["receivers"], n)
    rows = np.repeat(np.arange(n, dtype=np.int32), np.diff(raw["feature_indptr"]))
    values = raw["feature_values"].astype(np.float64)
    if not len(rows) == len(values) == len(raw["feature_indices"]):
        raise ValueError(f"{path}: the feature arrays differ in length")
    totals = np.bincount(rows, values, minlength=n)
    return CitationGraph(
        name=path.stem,
        num_nodes=n,
        num_classes=classes,
        num_features=width,
        senders=senders,
        receivers=receivers,
        rows=rows,
        columns=raw["feature_indices"].astype(np.int32),
        values=(values / np.where(totals > 0, totals, 1.0)[rows]).astype(np.float32),
        labels=raw["labels"].astype(np.int32),
        train=raw["train_nodes"].astype(np.int32),
        val=raw["val_nodes"].astype(np.int32),
        test=raw["test_nodes"].astype(np.int32),
    )


def _with_self_loops(
    senders: np.ndarray, receivers: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """The edges between two nodes, in the file's order, then one loop a node, isolated or not."""
    proper = senders != receivers
    loops = np.arange(n, dtype=np.int32)
    return tuple(
        np.concatenate([ends[proper].astype(np.int32), loops]) for ends in (senders, receivers)
    )


def _check_range(path: Path, name: str, values: np.ndarray, low: int, high: int) -> None:
    if values.size and not (low <= values.min() and values.max() < high):
        raise ValueError(f"{path}: {name} leaves [{low}, {high})")
