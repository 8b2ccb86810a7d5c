# SPDX-License-Identifier: Apache-2.0
"""Plans and graphs in files and pickles: what is kept, and what a damaged file does."""

from __future__ import annotations

import io
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import Graph, IndexPlan, make_plan

from . import cases, test_graph

KINDS = {"IndexPlan": IndexPlan, "Graph": Graph}


def example(kind):
    ids = [2, -1, 0, 2, 5]
    plan = make_plan(ids, 3, mode="drop")
    return plan if kind == "IndexPlan" else Graph(plan, make_plan([0, 1, 1, 3, 3], 4))


def assert_same(made, given):
    """Equal leaves and equal static parts: no jitted function is traced anew."""
    assert type(made) is type(given)
    assert jax.tree.structure(made) == jax.tree.structure(given)
    for leaf, expected in zip(jax.tree.leaves(made), jax.tree.leaves(given), strict=True):
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype == jnp.int32
        assert not leaf.committed
        np.testing.assert_array_equal(leaf, expected)
    assert made == given
    assert hash(made) == hash(given)


@pytest.fixture
def through(tmp_path):
    """Ways out of the process and back."""

    def file(value):
        value.save(tmp_path / "it")
        return type(value).load(tmp_path / "it")

    ways = {"file": file}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        ways[f"pickle {protocol}"] = lambda v, p=protocol: pickle.loads(pickle.dumps(v, p))
    return ways


@pytest.mark.parametrize("pattern", cases.PATTERNS)
def test_a_plan_comes_back(through, pattern):
    ids, num_rows = cases.PATTERNS[pattern]
    plan = make_plan(ids, num_rows, mode="drop")
    for way in through.values():
        assert_same(way(plan), plan)
        assert_same(way(plan.generic), plan.generic)


@pytest.mark.parametrize("name", test_graph.GRAPHS)
def test_a_graph_comes_back(through, name):
    graph = test_graph.make(name)
    for way in (through["file"], through["pickle 5"]):
        assert_same(way(graph), graph)
        mixed = Graph(graph.senders.generic, graph.receivers)
        assert_same(way(mixed), mixed)
        assert_same(way(graph.T), graph.T)


def test_a_file_has_exactly_the_name_it_is_given(tmp_path):
    for kind, cls in KINDS.items():
        for name in (f"{kind} of mine", f"{kind}.npz"):
            example(kind).save(str(tmp_path / name))
            assert (tmp_path / name).is_file()
            assert cls.load(str(tmp_path / name)) == example(kind)
    assert len(list(tmp_path.iterdir())) == 4


def test_what_a_file_holds(tmp_path):
    plan, graph = example("IndexPlan"), example("Graph")
    plan.save(tmp_path / "plan")
    graph.save(tmp_path / "graph")
    with np.load(tmp_path / "plan") as found:
        assert {name: found[name].tolist() for name in found.files} == {
            "format": "IndexPlan",
            "version": 1,
            "ids": [2, -1, 0, 2, -1],
            "num_rows": 3,
            "flags": [False, True],
            "digest": plan.digest,
        }
    with np.load(tmp_path / "graph") as found:
        assert {name: found[name].tolist() for name in found.files} == {
            "format": "Graph",
            "version": 1,
            "senders": [2, -1, 0, 2, -1],
            "num_senders": 3,
            "receivers": [0, -1, 1, 3, -1],
            "num_receivers": 4,
            "flags": [False, True, False, True],
            "digest": graph.digest,
        }


def test_pickles_hold_ids_alone():
    senders, receivers, n_s, n_r = test_graph.GRAPHS["hubs"]
    graph = Graph(senders, receivers, num_senders=n_s, num_receivers=n_r)
    room = 4 * graph.num_edges
    assert room < len(pickle.dumps(graph.senders)) < 1.1 * room
    assert 2 * room < len(pickle.dumps(graph)) < 2.1 * room
    # A plan that stands in a graph as well is written once.
    plans = graph.senders, graph
    assert len(pickle.dumps(plans)) < 2.1 * room
    again, holder = pickle.loads(pickle.dumps(plans))
    assert again is holder.senders


def test_flags_that_are_not_true_do_not_come_back(tmp_path):
    """A file is not believed: its ids are sorted, whatever it says of them."""
    plan = make_plan([1, 0], 2)
    with open(tmp_path / "plan", "wb") as file:
        content = {"format": "IndexPlan", "version": np.int64(1), "digest": plan.digest}
        np.savez(file, ids=plan.ids, num_rows=np.int64(2), flags=np.ones(2, bool), **content)
    loaded = IndexPlan.load(tmp_path / "plan")
    assert loaded.perm.tolist() == [1, 0]
    assert (loaded.identity, loaded.no_long_row) == (False, True)


def test_stacks_and_odd_leaves_are_pickled_as_they_are():
    for one in (example("IndexPlan"), example("Graph")):
        stack = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), one)
        for given in (stack, jax.tree.map(lambda leaf: leaf / 2, one)):
            made = pickle.loads(pickle.dumps(given))
            assert jax.tree.structure(made) == jax.tree.structure(given)
            for leaf, expected in zip(jax.tree.leaves(made), jax.tree.leaves(given), strict=True):
                assert leaf.dtype == expected.dtype
                np.testing.assert_array_equal(leaf, expected)
    bare = jax.tree.map(
        lambda _: "a plan", example("Graph"), is_leaf=lambda v: isinstance(v, IndexPlan)
    )
    assert pickle.loads(pickle.dumps(bare)).senders == "a plan"


def test_what_is_traced_is_not_saved(tmp_path):
    path = tmp_path / "it"
    stated = "a traced array of shape (5,) and dtype int32"
    for kind, argument, what in (("IndexPlan", "self", "plan"), ("Graph", "senders", "graph")):
        with pytest.raises(TypeError) as refused:
            jax.jit(lambda v: v.save(path))(example(kind))
        assert str(refused.value) == (
            f"jax_index.{kind}.save: {argument} must be concrete, got a plan whose ids are "
            f"{stated}. Save the {what} outside of jit, or pass it as an argument."
        )
        with pytest.raises(TypeError) as refused:
            jax.jit(lambda v: pickle.dumps(v) and 0)(example(kind))
        assert str(refused.value) == (
            f"jax_index.IndexPlan: self must be concrete, got a plan whose ids are {stated}. "
            "Pickle the plan outside of jit, or pass it as an argument."
        )
    assert not path.exists()


def test_stacks_are_not_saved(tmp_path):
    for kind, name, made in (
        ("IndexPlan", "ids", "plans, as make_plan returned"),
        ("Graph", "senders.ids", "graphs, as Graph makes"),
    ):
        stack = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), example(kind))
        with pytest.raises(TypeError) as refused:
            stack.save(tmp_path / "it")
        assert str(refused.value) == (
            f"jax_index.{kind}.save: {name} must be an int32 array of shape (5,), got an array of "
            f"shape (2, 5) and dtype int32. Save single {made} them."
        )


def refusal(kind, content):
    """The text with which a file is refused, without its common start."""
    path = content.pop("path")
    with open(path, "wb") as file:
        np.savez(file, **content)
    with pytest.raises(ValueError) as refused:
        KINDS[kind].load(path)
    start = f"jax_index.{kind}.load: "
    assert str(refused.value).startswith(start)
    return str(refused.value)[len(start) :]


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_refused(tmp_path, kind):
    path = tmp_path / "it"
    example(kind).save(path)
    with np.load(path) as found:
        good = {"path": path, **{name: found[name] for name in found.files}}
    ids, size = ("ids", "num_rows") if kind == "IndexPlan" else ("receivers", "num_receivers")
    wrong = f"path must be a file that {kind}.save wrote, got one"

    assert refusal(kind, {**good, "version": np.int64(2)}) == (
        "path must be a file of version 1, got version 2. "
        "Read it with the jax_index that wrote it, or save it anew."
    )
    other = "Graph" if kind == "IndexPlan" else "IndexPlan"
    text = refusal(kind, {**good, "format": other})
    assert text == f"{wrong} of format '{other}'. Save it anew."
    example(other).save(path)
    with pytest.raises(ValueError, match=rf"got one of format '{other}'\."):
        KINDS[kind].load(path)
    changed = np.array(good[ids])
    changed[0] += 1
    for name, value in (
        (ids, changed),
        (size, good[size] + 1),
        ("digest", np.array("0" * 32)),
    ):
        text = refusal(kind, {**good, name: value})
        assert text == f"{wrong} whose digest differs. Save it anew."
    for name, value, given in (
        (ids, good[ids][None], "shape (1, 5) and dtype int32"),
        (ids, good[ids].astype(np.int64), "shape (5,) and dtype int64"),
        (ids, good[ids].astype(np.float32), "shape (5,) and dtype float32"),
        (size, np.float64(3), "shape () and dtype float64"),
        (size, good[size][None], "shape (1,) and dtype int64"),
        ("flags", good["flags"][1:], f"shape ({good['flags'].size - 1},) and dtype bool"),
        ("digest", np.array("0"), "shape () and dtype <U1"),
    ):
        text = refusal(kind, {**good, name: value})
        assert text == f"{wrong} whose {name} are an array of {given}. Save it anew."
    for value in (-1, 2**31):
        text = refusal(kind, {**good, size: np.int64(value)})
        assert text.startswith(f"{size} must be a whole number from 0 to 2147483647, got {value}.")
    for name in good:
        if name != "path":
            left = {key: value for key, value in good.items() if key != name}
            assert refusal(kind, left).startswith(f"{wrong} that cannot be read (KeyError: ")
    text = refusal(kind, {**good, ids: np.array([None] * 5)})
    assert text.startswith(f"{wrong} that cannot be read (ValueError: Object arrays cannot")


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(tmp_path, kind, rng):
    """Cut short or with a byte changed, a file is refused or holds what it held."""
    path = tmp_path / "it"
    given = example(kind)
    given.save(path)
    whole = path.read_bytes()
    single = io.BytesIO()
    np.save(single, np.arange(3))
    damaged = [b"", b"no file", single.getvalue(), *(whole[:n] for n in range(0, len(whole), 97))]
    for place in rng.integers(0, len(whole), 150):
        changed = bytearray(whole)
        changed[place] ^= int(rng.integers(1, 256))
        damaged.append(bytes(changed))
    texts = []
    for content in damaged:
        path.write_bytes(content)
        try:
            assert KINDS[kind].load(path) == given
        except ValueError as error:
            texts.append(str(error))
    assert len(texts) > 50
    for text in texts:
        assert text.startswith(f"jax_index.{kind}.load: path must be a file ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_missing_is_the_systems_error(tmp_path, kind):
    with pytest.raises(FileNotFoundError):
        KINDS[kind].load(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        example(kind).save(tmp_path / "none" / "it")
    with pytest.raises(IsADirectoryError):
        KINDS[kind].load(pathlib.Path(tmp_path))


def test_what_comes_back_is_used_by_the_same_trace(through):
    seen = []

    def total(y, plan):
        seen.append(plan)
        return jax_index.scatter_add(y, plan)

    call = jax.jit(total)
    plan = example("IndexPlan")
    for way in through.values():
        assert call(jnp.arange(5.0), way(plan)).tolist() == [2, 0, 3]
    assert len(seen) == 1
