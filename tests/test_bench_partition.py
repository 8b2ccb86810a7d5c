# SPDX-License-Identifier: Apache-2.0
"""The benchmark of partitions: its counts, and the model that it fits."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("rich")
pytest.importorskip("scipy")
from bench import partition
from bench.__main__ import main


def test_counts_and_record(tmp_path, capsys):
    path = tmp_path / "run.json"
    assert main(["partition", "--sides", "30", "--parts", "1,4,9", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "900 nodes" in printed
    record = json.loads(path.read_text())
    assert [n["order"] for n in record["networks"]] == ["bisect", "contiguous"]
    for network in record["networks"]:
        one, four, nine = network["parts"]
        assert one["halo"]["total"] == one["rows"]["exact_unfused"] == 0
        for row in (four, nine):
            assert row["nodes"]["total"] == 900
            assert row["edges"]["total"] == network["links"]
            assert row["rows"]["forward"] <= row["in_rounds"]["padded"]["forward"]
            assert row["in_rounds"]["padded"]["forward"] <= row["padded"]["forward"]
            assert row["in_rounds"]["rounds"] >= row["neighbours"]
        c = network["model"]["halo"]
        assert c == pytest.approx(nine["halo"]["mean"] / math.sqrt(900 / 9))
    assert len(record["predictions"]) == len(partition.NODES_PER_PART)


def test_the_model_finds_the_law_that_it_is_given():
    def row(parts, nodes):
        root = math.sqrt(nodes / parts)
        return {
            "num_parts": parts,
            "halo": {"mean": 3 * root, "max_over_mean": 1.5},
            "cut_edges": 4 * root * parts,
            "padded": {"forward": 2 * root * parts * (parts - 1)},
            "in_rounds": {"padded": {"forward": 5 * root * parts}},
        }

    model = partition.fit([row(p, 10_000) for p in (1, 2, 8, 64)], 10_000)
    wanted = {"halo": 3, "halo_low": 3, "halo_high": 3, "cut": 4, "slots": 2, "in_rounds": 5}
    assert model == pytest.approx({**wanted, "max_over_mean": 1.5})
    found = partition.predictions(model)[1]
    assert found["halo"] == pytest.approx(300)
    assert found["padded_1024"] == pytest.approx(2 * 100 * 1023)
    assert partition.fit([row(2, 100)], 100) == {}
