# SPDX-License-Identifier: Apache-2.0
"""One column's run: train, time, predict, measure. Runs in a process of its own (worker.py)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax

from bench.columns import COLUMNS
from bench.gpu_load import GpuLoad
from bench.model import Batch, Topology, Variant, count_params, init_params, loss_terms, predict
from bench.ops import Ops
from bench.scenarios import Problem
from bench.step_profile import profile_step

LEARNING_RATE = 1e-3
WINDOW_SECONDS = 0.25  # steps are timed in windows of about this length, blocked on at the end
MAX_WINDOW = 20
REPEAT_SECONDS = 1.0  # the first steps are taken twice, for run-to-run bits, if they fit into this
REPEAT_SECONDS_UNLIMITED = 5.0  # the same where the job sets no time limit
PROFILED_MS = 100.0  # the traces of longer steps are not worth their size
MIN_PREDICTIONS, MAX_PREDICTIONS = 3, 200

Emit = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """What to do with one column.

    steps: at most so many for each batch size; seconds: stop training a batch size after about
    that long (None: never), but not before `compare` steps, whose gradients are digested.
    learn_batch: the batch size whose trained weights are judged on the held-out scenarios.
    """

    column: str
    seed: int
    batches: tuple[int, ...]
    steps: dict[int, int]
    seconds: dict[int, float | None]
    compare: int
    learn_batch: int
    predict_seconds: float
    softmax: str = "clip"
    dtype: str = "float32"
    measure: bool = True  # False: bits only, no prediction, no profile
    again: bool = False  # all steps once more in this process, to compare their bits


@dataclasses.dataclass
class Run:
    """What a training run leaves behind; digests are of the gradients of the first steps."""

    losses: list[float]
    digests: list[str]
    window_ms: list[float]
    params: Any


def run_job(job: Job, problem: Problem, emit: Emit) -> dict[str, Any]:
    """Everything the job asks for, as a JSON-ready record."""
    ops = COLUMNS[job.column].make_ops()
    started = time.perf_counter()
    topology = jax.block_until_ready(make_topology(ops, problem))
    record: dict[str, Any] = {
        "plan_seconds": time.perf_counter() - started,
        "params": count_params(init_params(job.seed, problem.features.shape[2])),
        "batches": {},
    }
    steps: dict[int, Any] = {}
    for batch in job.batches:
        found, steps[batch] = _run_batch(job, ops, problem, topology, batch, emit)
        record["batches"][str(batch)] = found
    stats = jax.devices()[0].memory_stats() or {}
    record["device_peak_bytes"] = stats.get("peak_bytes_in_use")
    record["host_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if job.measure and jax.default_backend() == "gpu":
        for batch, step in steps.items():  # last: a profiler may slow down what follows it
            run = record["batches"][str(batch)]
            if run["train_ms"] < PROFILED_MS:
                emit(f"profile, batch {batch}", 0, 0)
                run["profile"] = _profile(job, step, problem, topology, batch)
    return record


def make_topology(ops: Ops, problem: Problem) -> Topology:
    """Plans and constant arrays on the device."""
    n = problem.num_nodes
    return Topology(
        road=ops.edges(problem.senders, problem.receivers, n),
        od=ops.edges(problem.od_senders, problem.od_receivers, n),
        coordinates=jax.numpy.asarray(problem.coordinates),
        link_features=jax.numpy.asarray(problem.link_features),
        capacity=jax.numpy.asarray(problem.capacity),
    )


def train_step(
    ops: Ops, variant: Variant, state: Any, topology: Topology, batch: Batch
) -> tuple[Any, Any, Any]:
    """(params, optimiser state), loss and gradients after one step of Adam."""
    params, moments = state
    loss = functools.partial(loss_terms, ops, variant)
    (value, _), grads = jax.value_and_grad(loss, has_aux=True)(params, topology, batch)
    updates, moments = optax.adam(LEARNING_RATE).update(grads, moments)
    return (optax.apply_updates(params, updates), moments), value, grads


def first_state(seed: int, num_features: int) -> Any:
    """Fresh weights and optimiser state on the device."""
    params = jax.tree.map(jax.numpy.asarray, init_params(seed, num_features))
    return params, optax.adam(LEARNING_RATE).init(params)


def train_batches(problem: Problem, batch: int, seed: int) -> Iterator[Batch]:
    """Endless batches of training scenarios, on the device beforehand, in seeded order."""
    rng = np.random.default_rng([seed, batch])
    size = min(batch, problem.num_train)
    order = rng.permutation(problem.num_train)[: problem.num_train // size * size]
    staged = [jax.device_put(_batch(problem, some)) for some in order.reshape(-1, size)]
    while True:
        for i in rng.permutation(len(staged)):
            yield staged[i]


def _batch(problem: Problem, scenarios: np.ndarray) -> Batch:
    arrays = (problem.features, problem.flows, problem.net_demand)
    return Batch(*(np.ascontiguousarray(array[:, scenarios]) for array in arrays))


def _run_batch(
    job: Job, ops: Ops, problem: Problem, topology: Topology, batch: int, emit: Emit
) -> tuple[dict[str, Any], Any]:
    """The record of one batch size, and its compiled step."""
    state = first_state(job.seed, problem.features.shape[2])
    one = next(train_batches(problem, batch, job.seed))
    started = time.perf_counter()
    emit(f"compile, batch {batch}", 0, 0)
    variant = Variant(job.softmax, job.dtype)
    step = jax.jit(functools.partial(train_step, ops, variant), donate_argnums=0)
    compiled = step.lower(state, topology, one).compile()
    record: dict[str, Any] = {"compile_seconds": time.perf_counter() - started}
    memory = compiled.memory_analysis()
    record["temp_bytes"] = getattr(memory, "temp_size_in_bytes", None)
    load = GpuLoad() if jax.default_backend() == "gpu" else None
    run = _train(job, compiled, problem, topology, batch, emit, load)
    record |= {
        "steps": len(run.losses),
        "losses": run.losses,
        "loss_bits": [np.float32(x).tobytes().hex() for x in run.losses],
        "gradient_digests": run.digests,
        "losses_digest": digest(np.float32(run.losses)),
        "params_digest": digest(run.params),
        "train_ms": statistics.median(run.window_ms),
        "train_ms_windows": run.window_ms,
        "gpu_utilisation": load.median() if load else None,
        "gpu_samples": len(load.samples) if load else 0,
    }
    if job.again:
        more = _train(job, compiled, problem, topology, batch, emit, None)
        record["again"] = {
            "losses_digest": digest(np.float32(more.losses)),
            "params_digest": digest(more.params),
        }
    if not job.measure:
        return record, compiled
    patience = REPEAT_SECONDS_UNLIMITED if job.seconds[batch] is None else REPEAT_SECONDS
    if batch == job.learn_batch and record["train_ms"] * job.compare < patience * 1e3:
        short = dataclasses.replace(job, steps={batch: job.compare}, seconds={batch: None})
        again = _train(short, compiled, problem, topology, batch, emit, None)
        record["repeatable"] = (
            again.digests == run.digests and again.losses == run.losses[: job.compare]
        )
    record |= _predict(job, ops, problem, topology, batch, run.params, emit)
    return record, compiled


def _train(
    job: Job,
    compiled: Callable[..., Any],
    problem: Problem,
    topology: Topology,
    batch: int,
    emit: Emit,
    load: GpuLoad | None,
) -> Run:
    """The steps of one batch size. The first `compare` are blocked on and digested one by one."""
    state = first_state(job.seed, problem.features.shape[2])
    batches = train_batches(problem, batch, job.seed)
    losses: list[Any] = []
    digests, window_ms = [], []
    slow, total = 0.0, job.steps[batch]
    for done in range(min(job.compare, total)):
        started = time.perf_counter()
        state, loss, grads = jax.block_until_ready(compiled(state, topology, next(batches)))
        slow = (time.perf_counter() - started) * 1e3
        window_ms = [slow]  # kept only where no step follows
        losses.append(loss)
        digests.append(digest(grads))
        emit(f"train, batch {batch}", done + 1, total)
    limit = job.seconds[batch]
    if limit is not None:
        total = min(total, len(losses) + max(0, round((limit * 1e3 - slow * len(losses)) / slow)))
    window = int(np.clip(WINDOW_SECONDS * 1e3 / slow, 1, MAX_WINDOW))
    if len(losses) < total:
        window_ms = []
    if load:
        load.start()
    while len(losses) < total:
        count = min(window, total - len(losses))
        started = time.perf_counter()
        for _ in range(count):
            state, loss, _ = compiled(state, topology, next(batches))
            losses.append(loss)
        jax.block_until_ready(state)
        window_ms.append((time.perf_counter() - started) * 1e3 / count)
        emit(f"train, batch {batch}", len(losses), total)
    if load:
        load.stop()
    return Run([float(x) for x in losses], digests, window_ms, state[0])


def _profile(
    job: Job, compiled: Any, problem: Problem, topology: Topology, batch: int
) -> dict[str, Any]:
    """Kernel times of a training step, or the reason why there are none."""
    state = first_state(job.seed, problem.features.shape[2])
    batches = train_batches(problem, batch, job.seed)

    def call() -> None:
        nonlocal state
        state = compiled(state, topology, next(batches))[0]

    try:
        return profile_step(call, lambda: jax.block_until_ready(state), compiled.as_text())
    except Exception as error:  # a figure that is missing must not end the run
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def digest(tree: Any) -> str:
    """SHA-256 of all leaves' bytes."""
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        total.update(np.asarray(leaf).tobytes())
    return total.hexdigest()


def _predict(
    job: Job, ops: Ops, problem: Problem, topology: Topology, batch: int, params: Any, emit: Emit
) -> dict[str, Any]:
    """Inference times, and at the learning batch size the held-out errors."""
    held_out = np.arange(problem.num_train, problem.features.shape[1])
    groups = [
        np.resize(held_out[i : i + batch], batch) for i in range(0, len(held_out), batch)
    ]  # the last group repeats itself to full size
    staged = [jax.device_put(np.ascontiguousarray(problem.features[:, g])) for g in groups]
    emit(f"compile inference, batch {batch}", 0, 0)
    program = jax.jit(functools.partial(predict, ops, Variant(job.softmax, job.dtype)))
    infer = program.lower(params, topology, staged[0]).compile()
    jax.block_until_ready(infer(params, topology, staged[0]))
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < MAX_PREDICTIONS and (
        len(times) < MIN_PREDICTIONS or time.perf_counter() - begun < job.predict_seconds
    ):
        started = time.perf_counter()
        jax.block_until_ready(infer(params, topology, staged[len(times) % len(staged)]))
        times.append((time.perf_counter() - started) * 1e3)
        emit(f"inference, batch {batch}", len(times), MAX_PREDICTIONS)
    p50 = statistics.median(times)
    record: dict[str, Any] = {
        "infer_p50_ms": p50,
        "infer_p50_ms_per_scenario": p50 / batch,
        "infer_repeats": len(times),
        "infer_temp_bytes": getattr(infer.memory_analysis(), "temp_size_in_bytes", None),
    }
    if batch == job.learn_batch:
        ratio = np.concatenate([np.asarray(infer(params, topology, x)) for x in staged], axis=1)
        ratio = ratio[:, : len(held_out)]
        count = problem.num_held_out
        record["held_out"] = errors(problem, ratio[:, :count], held_out[:count])
        if problem.published:
            record["published"] = errors(problem, ratio[:, count:], held_out[count:])
    return record


def errors(problem: Problem, ratio: np.ndarray, scenarios: np.ndarray) -> dict[str, float]:
    """MAE of the ratio and correlation of the flows, over all links of some scenarios."""
    flow = ratio * problem.capacity[:, None]
    true = problem.flows[:, scenarios]
    return {
        "mae_ratio": float(np.mean(np.abs(ratio - true / problem.capacity[:, None]))),
        "mean_ratio": float(np.mean(true / problem.capacity[:, None])),
        "flow_correlation": float(np.corrcoef(flow.ravel(), true.ravel())[0, 1]),
    }
