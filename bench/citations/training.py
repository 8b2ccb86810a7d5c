# SPDX-License-Identifier: Apache-2.0
"""Training of many seeds at once, with the early stopping of the authors' code, compiled."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.citations.attention import COLUMNS, AttentionOps
from bench.citations.dataset import CitationGraph
from bench.citations.model import (
    Params,
    Problem,
    count_correct,
    cross_entropy,
    draw_dropout,
    init_params,
    logits,
    make_problem,
    training_loss,
)

LEARNING_RATE = 5e-3
PATIENCE = 100
CHUNK = 10  # epochs of one compiled call; seeds that stop within it idle to its end

Record = dict[str, Any]
Emit = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """Train `seeds`, `batch` of them at a time; `repeat`: the first batch once more."""

    column: str
    seeds: tuple[int, ...]
    batch: int
    epochs: int
    repeat: bool
    patience: int = PATIENCE


class Watch(NamedTuple):
    """Early stopping of one seed: the best values so far, and what the chosen epoch gave."""

    best_loss: jax.Array
    best_correct: jax.Array
    since: jax.Array  # epochs since one of them was last reached
    chosen_epoch: jax.Array
    test_correct: jax.Array


class State(NamedTuple):
    """One seed between two epochs."""

    seed: jax.Array
    params: Params
    moments: Any
    epoch: jax.Array
    watch: Watch


class Curve(NamedTuple):
    """What an epoch leaves; `ran` is False for the idle ones after the stop."""

    ran: jax.Array
    loss: jax.Array
    val_loss: jax.Array
    val_correct: jax.Array


def first_watch() -> Watch:
    """Before the first epoch, which is the best one whatever it gives."""
    zero = np.int32(0)
    return Watch(np.float32(np.inf), zero, zero, zero, zero)


def observe(
    watch: Watch,
    epoch: jax.Array,
    val_loss: jax.Array,
    val_correct: jax.Array,
    test_correct: jax.Array,
) -> Watch:
    """The authors' rule: an epoch that reaches the best loss or the best accuracy resets `since`.

    One that reaches both is the chosen one. The best values are kept apart, so the chosen epoch
    need not have either at the end.
    """
    loss_reached = val_loss <= watch.best_loss
    accuracy_reached = val_correct >= watch.best_correct
    both = loss_reached & accuracy_reached
    return Watch(
        best_loss=jnp.where(loss_reached, val_loss, watch.best_loss),
        best_correct=jnp.maximum(val_correct, watch.best_correct),
        since=jnp.where(loss_reached | accuracy_reached, 0, watch.since + 1),
        chosen_epoch=jnp.where(both, epoch, watch.chosen_epoch),
        test_correct=jnp.where(both, test_correct, watch.test_correct),
    )


def first_states(seeds: Sequence[int], num_features: int, num_classes: int) -> State:
    """Fresh weights of a batch, on the device."""
    inits = [init_params(seed, num_features, num_classes) for seed in seeds]
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *inits)
    zeros = jax.eval_shape(jax.vmap(optax.adam(LEARNING_RATE).init), params)  # Adam starts from 0
    moments = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), zeros)
    watch = Watch(*(np.full(len(seeds), x) for x in first_watch()))
    epoch = np.zeros(len(seeds), np.int32)
    return jax.device_put(State(np.array(seeds, np.int32), params, moments, epoch, watch))


def train_epoch(
    ops: AttentionOps, problem: Problem, limits: tuple[jax.Array, jax.Array], state: State
) -> tuple[State, Curve]:
    """One full-batch step and its evaluation; a seed that has stopped keeps its state's bits.

    limits: patience and the largest number of epochs.
    """
    patience, epochs = limits
    key = jax.random.fold_in(jax.random.key(state.seed), state.epoch)
    dropout = draw_dropout(key, problem)
    loss = functools.partial(training_loss, ops)
    value, grads = jax.value_and_grad(loss)(state.params, problem, dropout)
    updates, moments = optax.adam(LEARNING_RATE).update(grads, state.moments)
    params = optax.apply_updates(state.params, updates)
    out = logits(ops, problem, params, None)
    val_loss = cross_entropy(problem, out, problem.val)
    val_correct, test_correct = (
        count_correct(problem, out, nodes) for nodes in (problem.val, problem.test)
    )
    epoch = state.epoch + 1
    watch = observe(state.watch, epoch, val_loss, val_correct, test_correct)
    ran = (state.watch.since < patience) & (state.epoch < epochs)
    new = State(state.seed, params, moments, epoch, watch)
    kept = jax.tree.map(lambda a, b: jnp.where(ran, a, b), new, state)
    return kept, Curve(ran, value, val_loss, val_correct)


def train_chunk(
    ops: AttentionOps, problem: Problem, limits: tuple[jax.Array, jax.Array], states: State
) -> tuple[State, Curve]:
    """CHUNK epochs of a batch of seeds; curves are [CHUNK, seeds]."""
    epoch = jax.vmap(functools.partial(train_epoch, ops, problem, limits))
    return jax.lax.scan(lambda states, _: epoch(states), states, length=CHUNK)


def run_job(job: Job, source: CitationGraph, emit: Emit) -> Record:
    """Everything the job asks for, as a JSON-ready record."""
    ops = COLUMNS[job.column].make_ops()
    started = time.perf_counter()
    problem = jax.block_until_ready(make_problem(ops, source))
    uploaded = time.perf_counter()
    trainer = Trainer(ops, problem, job.batch)
    compiled = time.perf_counter()
    runs: list[Record] = []
    for i in range(0, len(job.seeds), job.batch):
        runs += trainer.run(job, job.seeds[i : i + job.batch], i, emit)
    record: Record = {
        "upload_seconds": uploaded - started,
        "compile_seconds": compiled - uploaded,
        "train_seconds": time.perf_counter() - compiled,
        "runs": runs,
    }
    if job.repeat:

        def emit_again(phase: str, done: int, total: int) -> None:
            emit(f"again, {phase}", done, total)

        short = dataclasses.replace(job, seeds=job.seeds[: job.batch])
        again = trainer.run(short, short.seeds, 0, emit_again)
        record["same_process"] = compare_runs(runs, again)
    for run in runs[1:]:
        del run["curve"]  # the first seed's is drawn; the digests stand for the others
    return record


class Trainer:
    """The compiled chunk of one column and problem, for `batch` seeds at once."""

    def __init__(self, ops: AttentionOps, problem: Problem, batch: int):
        self._problem, self._batch = problem, batch
        states = self._first_states([0] * batch)
        chunk = jax.jit(functools.partial(train_chunk, ops), donate_argnums=2)
        # Full float32, so that a GPU's shorter products do not stand between the platforms.
        with jax.default_matmul_precision("highest"):
            lowered = chunk.lower(problem, (np.int32(0), np.int32(0)), states)
        self._chunk = lowered.compile()

    def _first_states(self, seeds: Sequence[int]) -> State:
        return first_states(seeds, self._problem.num_features, self._problem.num_classes)

    def run(self, job: Job, seeds: Sequence[int], before: int, emit: Emit) -> list[Record]:
        """Train one batch until all of it has stopped; one record a seed."""
        # A short last batch is filled up, so that it runs the program of the others.
        states = self._first_states([*seeds, *[seeds[-1]] * (self._batch - len(seeds))])
        limits = np.int32(job.patience), np.int32(job.epochs)
        curves: list[Curve] = []
        running = True
        while running:
            states, curve = self._chunk(self._problem, limits, states)
            curves.append(jax.tree.map(np.asarray, curve))
            epoch, since = np.asarray(states.epoch), np.asarray(states.watch.since)
            stopped = (epoch >= job.epochs) | (since >= job.patience)
            running = not stopped.all()
            done = before + int(stopped[: len(seeds)].sum())
            emit(f"epoch {epoch.max()}", done, len(job.seeds))
        curve = Curve(*(np.concatenate(parts) for parts in zip(*curves, strict=True)))
        states = jax.device_get(states._replace(moments=None))
        return [self._record(seed, i, states, curve) for i, seed in enumerate(seeds)]

    def _record(self, seed: int, i: int, states: State, curve: Curve) -> Record:
        epochs = int(states.epoch[i])
        assert curve.ran[:epochs, i].all()
        loss, val_loss, val_correct = (part[:epochs, i] for part in curve[1:])
        params = jax.tree.map(lambda x: x[i], states.params)
        watch = jax.tree.map(lambda x: x[i].item(), states.watch)
        return {
            "seed": seed,
            "epochs": epochs,
            "chosen_epoch": watch.chosen_epoch,
            "test_accuracy": watch.test_correct / len(self._problem.test),
            "best_val_accuracy": watch.best_correct / len(self._problem.val),
            "best_val_loss": watch.best_loss,
            "curve_digest": digest((loss, val_loss, val_correct)),
            "weights_digest": digest(params),
            "curve": {
                "loss": loss.tolist(),
                "val_loss": val_loss.tolist(),
                "val_accuracy": (val_correct / len(self._problem.val)).tolist(),
            },
        }


def digest(tree: Any) -> str:
    """SHA-256 of all leaves' bytes."""
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        total.update(np.ascontiguousarray(leaf).tobytes())
    return total.hexdigest()


def compare_runs(first: list[Record], again: list[Record]) -> Record:
    """How many seeds of `again`, the first ones of `first`, have its loss curve and weights' bits.

    first_differing_epoch: from which on the training loss of the first seed is another.
    """
    pairs = list(zip(first, again, strict=False))
    curves = [a["curve_digest"] == b["curve_digest"] for a, b in pairs]
    weights = [a["weights_digest"] == b["weights_digest"] for a, b in pairs]
    losses = zip(pairs[0][0]["curve"]["loss"], pairs[0][1]["curve"]["loss"], strict=False)
    differing = (epoch for epoch, (a, b) in enumerate(losses, 1) if a != b)
    return {
        "seeds": len(pairs),
        "equal_curves": sum(curves),
        "equal_weights": sum(weights),
        "equal": all(curves) and all(weights),
        "first_differing_epoch": next(differing, None),
    }
