# SPDX-License-Identifier: Apache-2.0
"""What the records of a main job prove: equal bits, repeated bits, and learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.columns import FUSED, REFERENCE, SUBJECT

Record = dict[str, Any]
RunBits = Callable[[str, int, bool], Record]  # column, steps, the same steps again -> its record


def add_bits(result: Record, run_bits: RunBits) -> None:
    """Compare the opaque column with the host reference; note what the columns went without."""
    columns, batch = result["columns"], result["learn_batch"]
    on_gpu = result["device"]["backend"] == "gpu"
    reference, subject = columns.get(REFERENCE), columns.get(SUBJECT)
    if reference and subject and "error" not in reference and "error" not in subject:
        if on_gpu:
            subject = run_bits(SUBJECT, reference["batches"][str(batch)]["steps"], False)
            result["pinned_" + SUBJECT] = subject
        if "error" not in subject:
            same = result["batches"] if not on_gpu else [batch]
            result["bits"] = [compare_bits(reference, subject, b) for b in same]
    platform = "cuda" if on_gpu else result["device"]["backend"]
    found = [r["kernels"].get(platform) for r in columns.values() if r.get("kernels")]
    if found and not (found[0] or "").startswith("kernels"):
        result["notes"].append(f"jax_index ran without its kernels: {found[0]}.")
    for name, record in columns.items():
        for size, run in record.get("batches", {}).items():
            if reason := run.get("profile", {}).get("error"):
                result["notes"].append(f"No profile of {name}, batch {size}: {reason}.")


def add_repeats(result: Record, run_bits: RunBits, steps: int) -> None:
    """Take the same steps of the fused column twice in one process and once in a second one."""
    if "error" in result["columns"].get(FUSED, {"error": "left out"}):
        return
    batch = result["learn_batch"]
    records = [run_bits(FUSED, steps, again) for again in (True, False)]
    if any("error" in record for record in records):
        result["columns"][FUSED]["error"] = next(r["error"] for r in records if "error" in r)
        return
    first, second = (record["batches"][str(batch)] for record in records)
    keys = ("losses_digest", "params_digest")
    result["repeats"] = {
        "column": FUSED,
        "batch": batch,
        "steps": first["steps"],
        "same_process": all(first[key] == first["again"][key] for key in keys),
        "second_process": all(first[key] == second[key] for key in keys),
        **{key: first[key] for key in keys},
        "runs": [{k: run[k] for k in keys} for run in (first, first["again"], second)],
    }


def add_learning(result: Record, learner: str) -> None:
    """Say what the column that trained longest learned."""
    columns, batch = result["columns"], result["learn_batch"]
    ran = [name for name in columns if "error" not in columns[name]]
    if not ran:
        return
    if learner not in ran:
        learner = max(ran, key=lambda name: columns[name]["batches"][str(batch)]["steps"])
    trained = columns[learner]
    record = trained["batches"][str(batch)]
    result["learning"] = {
        "column": learner,
        "steps": record["steps"],
        **learning(trained, batch),
        "held_out": record.get("held_out"),
        "published": record.get("published"),
    }


def compare_bits(reference: Record, subject: Record, batch: int) -> Record:
    """Whether losses, gradients and weights of two records are equal to the bit.

    Losses of the steps that both took, gradients of the first ones, and, where both took equally
    many steps, the weights after the last.
    """
    a, b = (record["batches"][str(batch)] for record in (reference, subject))
    steps = min(a["steps"], b["steps"])
    pairs = list(zip(a["loss_bits"][:steps], b["loss_bits"][:steps], strict=True))
    differing = [step for step, (x, y) in enumerate(pairs) if x != y]
    digests = min(len(a["gradient_digests"]), len(b["gradient_digests"]))
    return {
        "batch": batch,
        "steps": steps,
        "loss_equal": not differing,
        "first_differing_step": differing[0] if differing else None,
        "largest_loss_difference": max(
            abs(x - y) for x, y in zip(a["losses"][:steps], b["losses"][:steps], strict=True)
        ),
        "gradient_steps": digests,
        "gradients_equal": a["gradient_digests"][:digests] == b["gradient_digests"][:digests],
        "params_equal": (
            a["params_digest"] == b["params_digest"] if a["steps"] == b["steps"] else None
        ),
    }


def learning(record: Record, batch: int) -> Record:
    """First loss, mean of the last steps (one epoch or a quarter of the run), and their ratio."""
    losses = record["batches"][str(batch)]["losses"]
    last = losses[-max(1, min(6, len(losses) // 4)) :]
    mean = sum(last) / len(last)
    return {"first": losses[0], "last": mean, "fall": 1.0 - mean / losses[0]}
