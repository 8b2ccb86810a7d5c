# SPDX-License-Identifier: Apache-2.0
"""The GAT on citation graphs: loader, early stopping, model against a dense one, command line."""

import functools
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optax", reason="the benchmark needs optax")
pytest.importorskip("rich", reason="the table needs rich")

import jax
import jax.numpy as jnp

import jax_index
from bench.__main__ import main
from bench.citations import model, training
from bench.citations.attention import COLUMNS, SUBJECT
from bench.citations.dataset import read_citation_graph
from bench.citations.report import BEGIN, END, markdown, percent, replace_between_markers

NODES, CLASSES, FEATURES = 30, 3, 12
AVAILABLE = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name == SUBJECT and not hasattr(jax_index, "gat_attention"),
            reason="jax_index has no gat_attention",
        ),
    )
    for name in COLUMNS
]


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it():
    """The benchmark runs under JAX's defaults, not under this suite's strict ones."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def arrays():
    """Three communities, each with words of its own; nodes 28 and 29 have no edge.

    Node 28 has no feature either, node 29 no label. There are a self-loop and a hub.
    """
    rng = np.random.default_rng(0)
    labels = (np.arange(NODES) % CLASSES).astype(np.int32)
    pairs = {(0, i) for i in range(1, 28)} | {(5, 5)}
    while len(pairs) < 80:
        a, b = sorted(rng.integers(0, 28, 2).tolist())
        if a != b and (labels[a] == labels[b] or rng.random() < 0.1):
            pairs.add((a, b))
    edges = sorted({*pairs, *((b, a) for a, b in pairs)})
    words = rng.random((NODES, FEATURES)) < 0.1
    words |= (np.arange(FEATURES) % CLASSES == labels[:, None]) & (rng.random(words.shape) < 0.5)
    words[28], words[29, 0] = False, True
    labels[29] = -1
    rows, columns = np.nonzero(words)
    return {
        "senders": np.array([a for a, _ in edges], np.int32),
        "receivers": np.array([b for _, b in edges], np.int32),
        "labels": labels,
        "num_nodes": np.int64(NODES),
        "num_classes": np.int64(CLASSES),
        "num_features": np.int64(FEATURES),
        "feature_indptr": np.searchsorted(rows, np.arange(NODES + 1)).astype(np.int32),
        "feature_indices": columns.astype(np.int32),
        "feature_values": np.ones(len(rows), np.float32),
        "train_nodes": np.arange(9, dtype=np.int32),
        "val_nodes": np.arange(9, 18, dtype=np.int32),
        "test_nodes": np.arange(18, 29, dtype=np.int32),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    np.savez(made / "cora.npz", **arrays())
    return made


@pytest.fixture(scope="module")
def source(folder):
    return read_citation_graph(folder / "cora.npz")


def dense_features(source):
    x = np.zeros((NODES, FEATURES), np.float32)
    x[source.rows, source.columns] = source.values
    return x


def test_loader_adds_one_loop_a_node_and_normalises_rows(source):
    raw = arrays()
    proper = raw["senders"] != raw["receivers"]
    assert len(source.senders) == proper.sum() + NODES
    loops = source.senders[source.senders == source.receivers]
    assert loops.tolist() == list(range(NODES))
    assert source.senders[:-NODES].tolist() == raw["senders"][proper].tolist()
    totals = dense_features(source).sum(1)
    np.testing.assert_allclose(np.delete(totals, 28), 1, rtol=1e-6)
    assert totals[28] == 0
    assert source.describe() | {"edges": 0} == {
        "title": "Cora", "nodes": 30, "edges": 0, "features": 12, "classes": 3,
        "train": 9, "val": 9, "test": 11,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("receivers", np.full(158, 30), r"receivers leaves \[0, 30\)"),
        ("labels", np.full(30, 3), r"labels leaves \[-1, 3\)"),
        ("labels", np.zeros(29, int), r"labels has shape \(29,\)"),
        ("test_nodes", np.array([29]), "no label"),
        ("feature_values", np.ones(3), "differ in length"),
        ("val_nodes", None, "no array val_nodes"),
    ],
)
def test_loader_names_what_is_wrong(tmp_path, field, value, message):
    broken = arrays() | {field: value}
    np.savez(tmp_path / "cora.npz", **{k: v for k, v in broken.items() if v is not None})
    with pytest.raises(ValueError, match=message):
        read_citation_graph(tmp_path / "cora.npz")


def test_real_citation_graphs():
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    real = Path(os.environ.get("JAX_INDEX_DATA", default)) / "planetoid"
    if not real.is_dir():
        pytest.skip(
            f"no citation graphs in {real}; JAX_INDEX_DATA names the folder above planetoid"
        )
    sizes = {"cora": (2708, 10556, 1433, 7, 140), "citeseer": (3327, 9104, 3703, 6, 120)}
    for name, (nodes, edges, features, classes, train) in sizes.items():
        graph = read_citation_graph(real / f"{name}.npz")
        assert graph.num_nodes == nodes
        assert len(graph.senders) == edges + nodes
        assert (graph.num_features, graph.num_classes) == (features, classes)
        assert (len(graph.train), len(graph.val), len(graph.test)) == (train, 500, 1000)


def authors_rule(losses, correct, patience):
    """(epochs, chosen epoch) by the loop of the authors' code."""
    lowest, highest, waited, chosen = math.inf, 0, 0, 0
    for epoch, (loss, hits) in enumerate(zip(losses, correct, strict=True), 1):
        if hits >= highest or loss <= lowest:
            if hits >= highest and loss <= lowest:
                chosen = epoch
            highest, lowest, waited = max(hits, highest), min(loss, lowest), 0
        else:
            waited += 1
            if waited == patience:
                return epoch, chosen
    return len(losses), chosen


@pytest.mark.parametrize("seed", range(6))
def test_early_stopping_follows_the_authors(seed):
    rng = np.random.default_rng(seed)
    steps, patience = 120, 7
    turn = np.abs(np.arange(steps) - 50) / 20  # both get better, then worse
    losses = (1 + turn + 0.3 * rng.normal(size=steps)).astype(np.float32)
    correct = np.rint(20 - 4 * turn + rng.normal(size=steps)).astype(int)
    watch = training.first_watch()
    observe = jax.jit(training.observe)
    epochs = 0
    while epochs < steps and watch.since < patience:
        loss, hits = losses[epochs], jnp.int32(correct[epochs])
        epochs += 1
        watch = observe(watch, jnp.int32(epochs), loss, hits, jnp.int32(1000 + epochs))
    want = authors_rule(losses, correct, patience)
    assert want == (epochs, int(watch.chosen_epoch))
    assert watch.test_correct == 1000 + want[1]
    assert 0 < want[1] < epochs < steps


def test_early_stopping_ignores_a_loss_that_is_not_a_number():
    watch = training.observe(training.first_watch(), 1, jnp.float32(1), 5, 7)
    watch = training.observe(watch, 2, jnp.float32(jnp.nan), 4, 9)
    assert (watch.best_loss, watch.since, watch.chosen_epoch, watch.test_correct) == (1, 1, 1, 7)


def dense_layer(source, h, layer, dropout):
    """One head: softmax over a whole [n, n] matrix of receivers and senders."""
    _, att, bias = layer
    scores = (h @ att[1])[:, None] + h @ att[0]
    scores = jnp.where(scores > 0, scores, 0.2 * scores)
    edge = np.zeros((NODES, NODES), bool)
    edge[source.receivers, source.senders] = True
    coefficients = jax.nn.softmax(jnp.where(edge, scores, -jnp.inf), axis=1)
    if dropout is not None:
        _, weights, values = dropout
        placed = jnp.zeros((NODES, NODES)).at[source.receivers, source.senders].set(weights)
        coefficients, h = coefficients * placed, h * values
    return coefficients @ h + bias


def dense_logits(source, params, dropout):
    """The two layers written out once more, head by head, without the model's code."""
    first, second = dropout or (None, None)
    x = jnp.asarray(dense_features(source))
    if dropout is not None:
        x = x.at[source.rows, source.columns].multiply(first.inputs)

    def first_layer(layer, masks):
        return dense_layer(source, x @ layer[0], layer, masks)

    heads = [jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -2, 0), layer) for layer in params]
    masks = first and (None, first.coefficients.T, jnp.moveaxis(first.values, 1, 0))
    out = jax.vmap(first_layer)(heads[0], masks)
    x = jnp.moveaxis(jnp.where(out > 0, out, jnp.expm1(out)), 0, 1).reshape(NODES, 64)
    if dropout is not None:
        x = x * second.inputs
    layer = [leaf[0] for leaf in heads[1]]
    masks = second and (None, second.coefficients[:, 0], second.values[:, 0])
    return dense_layer(source, x @ layer[0], layer, masks)


def dense_cross_entropy(source, out, nodes):
    p = jnp.exp(out[nodes])
    return -jnp.mean(jnp.log(p / p.sum(1, keepdims=True))[np.arange(9), source.labels[nodes]])


@pytest.mark.parametrize("column", AVAILABLE)
@pytest.mark.parametrize("dropped", [True, False])
def test_model_equals_a_dense_one(source, column, dropped):
    """Logits, loss and gradients in training; logits, loss and hits in evaluation."""
    ops = COLUMNS[column].make_ops()
    problem = model.make_problem(ops, source)
    params = jax.tree.map(  # biases too are not 0
        lambda p: jnp.asarray(p + np.float32(0.1)), model.init_params(0, FEATURES, CLASSES)
    )
    dropout = model.draw_dropout(jax.random.key(4), problem) if dropped else None

    def got(params, problem):
        out = model.logits(ops, problem, params, dropout)
        if dropped:
            return model.training_loss(ops, params, problem, dropout), out
        return model.cross_entropy(problem, out, problem.val), out

    def want(params, problem):
        out = dense_logits(source, params, dropout)
        if not dropped:
            return dense_cross_entropy(source, out, source.val), out
        decay = 5e-4 / 2 * sum(jnp.sum(p**2) for layer in params for p in layer[:2])
        return dense_cross_entropy(source, out, source.train) + decay, out

    if dropped:
        got, want = (jax.value_and_grad(f, has_aux=True) for f in (got, want))
    outcome = [jax.jit(f)(params, problem) for f in (got, want)]
    (_, out), (_, reference) = (pair[0] for pair in outcome) if dropped else outcome
    assert out.shape == (NODES, CLASSES)
    for a, b in zip(*map(jax.tree.leaves, outcome), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    hits = np.asarray(reference)[source.test].argmax(1) == source.labels[source.test]
    assert model.count_correct(problem, out, problem.test) == hits.sum()


def test_dropout_is_of_the_seed_and_keeps_four_in_ten(source):
    problem = model.make_problem(COLUMNS["xla"].make_ops(), source)
    draws = [model.draw_dropout(jax.random.key(seed), problem) for seed in (0, 0, 1)]
    first, again, other = (np.concatenate([x.ravel() for x in jax.tree.leaves(d)]) for d in draws)
    assert (first == again).all()
    assert (first != other).any()
    assert set(np.unique(first)) == {np.float32(0), np.float32(2.5)}
    assert abs(first.mean() - 1) < 0.1
    m = len(source.senders)
    assert [x.shape for x in draws[0][0]] == [source.values.shape, (m, 8), (30, 8, 8)]
    assert [x.shape for x in draws[0][1]] == [(30, 64), (m, 1), (30, 1, 3)]


def run(trained, seeds, epochs=200, patience=2):
    job = training.Job("xla", seeds, 2, epochs, False, patience)
    return trained.run(job, seeds, 0, lambda phase, done, total: None)


@pytest.fixture(scope="module")
def trainer(source):
    """Compiles a column once for all tests."""

    @functools.cache
    def compiled(column):
        ops = COLUMNS[column].make_ops()
        return training.Trainer(ops, model.make_problem(ops, source), 2)

    return compiled


@pytest.fixture(scope="module", params=AVAILABLE)
def trained(request, trainer):
    return request.param, trainer(request.param)


def test_seeds_stop_by_themselves_in_a_batch(trained):
    """The curve that a seed leaves, given to the authors' loop, stops where the seed did."""
    _, compiled = trained
    records = run(compiled, (0, 1))
    assert [r["seed"] for r in records] == [0, 1]
    for record in records:
        losses = record["curve"]["val_loss"]
        hits = np.rint(np.array(record["curve"]["val_accuracy"]) * 9).astype(int)
        assert len(losses) == record["epochs"]
        assert authors_rule(losses, hits, 2) == (record["epochs"], record["chosen_epoch"])
    assert records[0]["epochs"] != records[1]["epochs"]
    loss = records[0]["curve"]["loss"]
    assert np.mean(loss[-9:]) < 0.9 * loss[0]


def test_a_repeated_run_has_the_same_bits(trained):
    column, compiled = trained
    if column != SUBJECT and jax.default_backend() != "cpu":
        pytest.skip("XLA's scatter-add on a GPU promises no bits")
    first, again = (run(compiled, (0, 1), epochs=20) for _ in range(2))
    assert first[0]["weights_digest"] != first[1]["weights_digest"]
    assert training.compare_runs(first, again) == {
        "seeds": 2, "equal_curves": 2, "equal_weights": 2, "equal": True,
        "first_differing_epoch": None,
    }  # fmt: skip


def test_a_short_batch_is_filled_up(trained):
    _, compiled = trained
    (alone,), (_, beside) = (run(compiled, seeds, epochs=20) for seeds in ((1,), (0, 1)))
    assert alone["seed"] == beside["seed"] == 1
    np.testing.assert_allclose(alone["curve"]["loss"], beside["curve"]["loss"], rtol=1e-3)


def test_epochs_bound_a_run_that_would_go_on(trained):
    _, compiled = trained
    assert [r["epochs"] for r in run(compiled, (0, 1), epochs=13, patience=99)] == [13, 13]


def test_columns_of_a_seed_differ_by_rounding_alone(trainer):
    if not hasattr(jax_index, "gat_attention"):
        pytest.skip("jax_index has no gat_attention")
    curves = [run(trainer(c), (0, 1), epochs=10)[0]["curve"]["loss"] for c in COLUMNS]
    np.testing.assert_allclose(*curves, rtol=1e-3)


def test_a_difference_is_counted_and_dated():
    def record(losses, weights):
        curve = {"loss": losses}
        return {"curve_digest": str(losses), "weights_digest": weights, "curve": curve}

    first = [record([1.0, 2.0, 3.0], "a"), record([1.0], "b"), record([5.0], "not repeated")]
    again = [record([1.0, 2.5], "c"), record([1.0], "b")]
    assert training.compare_runs(first, again) == {
        "seeds": 2, "equal_curves": 1, "equal_weights": 1, "equal": False,
        "first_differing_epoch": 2,
    }  # fmt: skip


def test_command_writes_record_chart_and_table(folder, tmp_path, capsys, monkeypatch):
    """The whole way: child processes, second process, table, record, chart, Markdown."""
    pytest.importorskip("matplotlib", reason="the chart needs matplotlib")
    # Most of the time is compilation, in both of the children.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
    monkeypatch.setenv("XLA_FLAGS", flags.strip())
    record, chart = tmp_path / "gat.json", tmp_path / "gat.svg"
    command = ["gat", "--data", str(folder), "--dataset", "cora", "--columns", "xla"]
    command += ["--seeds", "3", "--batch-seeds", "2", "--epochs", "12"]
    assert main([*command, "--json", str(record), "--chart", str(chart)]) == 0
    assert "Cora: test accuracy %" in capsys.readouterr().out
    result = json.loads(record.read_text())
    assert (result["seeds"], result["batch_seeds"], result["max_epochs"]) == (3, 2, 12)
    assert result["machine"]["versions"]["jax"] == jax.__version__
    column = result["datasets"]["cora"]["columns"]["xla"]
    accuracies = [r["test_accuracy"] for r in column["runs"]]
    assert len(accuracies) == 3
    np.testing.assert_allclose(column["test_accuracy_mean"], np.mean(accuracies))
    np.testing.assert_allclose(column["test_accuracy_std"], np.std(accuracies, ddof=1))
    assert column["same_process"]["seeds"] == column["second_process"]["seeds"] == 2
    if result["device"]["backend"] == "cpu":
        assert column["same_process"]["equal"]
        assert column["second_process"]["equal"]
    assert "</svg>" in chart.read_text()
    page = replace_between_markers(f"before\n{BEGIN}\nold\n{END}\nafter", markdown(result))
    assert "old" not in page
    assert "| Cora: test accuracy % | 83.0 ± 0.7 |" in page
    assert page.startswith("before")
    assert page.endswith("after")


def test_one_seed_has_no_deviation():
    assert percent(0.8304, None) == "83.0"
    assert percent(0.8304, 0.0071) == "83.0 ± 0.7"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "pubmed"], "no 'pubmed'; there are cora, citeseer"),
        (["--columns", "torch"], "no 'torch'; there are xla, jax_index"),
        (["--seeds", "0"], "0 is below 1"),
        ([], "citeseer.npz"),
    ],
)
def test_command_refuses_what_it_cannot_do(folder, capsys, options, message):
    with pytest.raises(SystemExit):
        main(["gat", "--data", str(folder), *options])
    assert message in capsys.readouterr().err
