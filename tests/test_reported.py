# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""What users of other libraries reported as wrong, slow or unclear: one test each, by name."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import _native, gather, index_add, make_plan, scatter_add

from . import cases, oracle

CASES = {}


def case(name):
    def keep(fn):
        CASES[name] = fn
        return fn

    return keep


def both(fn, *arguments):
    """The result of fn, eager and jitted, which must be the same bits."""
    eager = fn(*arguments)
    jitted = jax.jit(fn)(*arguments)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(jitted), strict=True):
        oracle.assert_same(a, b)
    return eager


def run_python(code, **environment):
    settings = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False)


@case("oob-grad-adjoint")
def oob_grad_adjoint(device, rng):
    data = jnp.zeros(2)
    total = lambda v: scatter_add(v, [2, 3], num_rows=2, mode="drop").sum()
    value, slope = both(jax.value_and_grad(total), data)
    assert value == 0
    assert slope.tolist() == [0, 0]
    with pytest.raises(IndexError, match=r"\(num_rows is 2\), got ids\[0\] = 2\."):
        scatter_add(data, [2, 3], num_rows=2)


@case("gather-oob-forward-vs-grad")
def gather_oob_forward_vs_grad(device, rng):
    table = jnp.arange(5.0)
    for bad in (7, -7, -1):
        with pytest.raises(IndexError, match=rf"got ids\[0\] = {bad}\."):
            gather(table, [bad])
        for fill in (0.0, 2.5):
            take = lambda t, fill=fill, bad=bad: gather(t, [bad], mode="drop", fill_value=fill)
            assert both(take, table).tolist() == [fill]
            slope = both(jax.grad(lambda t, take=take: take(t).sum()), table)
            assert slope.tolist() == [0] * 5
    traced = jax.jit(lambda t, i: gather(t, i))
    assert traced(table, jnp.array([7, 4, -7])).tolist() == [0, 4, 0]


@case("negative-id-padding")
def negative_id_padding(device, rng):
    ids = [0, 1, 2, 3, 4, -1, -1, -1, -1, -1]
    data = jnp.ones(10)
    plan = make_plan(ids, 10, mode="drop")
    summed = both(lambda v: scatter_add(v, plan), data)
    assert summed.tolist() == [1] * 5 + [0] * 5
    assert both(lambda v: gather(v, plan), summed).tolist() == [1] * 5 + [0] * 5
    assert both(lambda v: gather(v, plan, fill_value=-3.0), summed).tolist() == [1] * 5 + [-3] * 5
    traced = jax.jit(lambda v, i: scatter_add(v, i, num_rows=10))(data, jnp.array(ids))
    assert traced.tolist() == [1] * 5 + [0] * 5
    with pytest.raises(IndexError, match=r"got ids\[5\] = -1\."):
        make_plan(ids, 10)


@case("nan-in-dropped-row")
def nan_in_dropped_row(device, rng):
    plan = make_plan([0, 1, -1], 2, mode="drop")
    for poison in (jnp.nan, jnp.inf):
        data = jnp.array([1.0, 2.0, poison])
        assert both(lambda v: scatter_add(v, plan), data).tolist() == [1, 2]
        assert both(lambda v: index_add(jnp.ones(2), plan, v), data).tolist() == [2, 3]
        assert both(jax.grad(lambda v: scatter_add(v, plan)[0]), data).tolist() == [1, 0, 0]
        _, back = jax.vjp(lambda v: gather(v, plan), jnp.ones(2))
        assert back(data)[0].tolist() == [1, 2]


@case("narrow-index-scatter-one-update")
def narrow_index_scatter_one_update(device, rng):
    for dtype, num_rows, at in (("uint8", 300, 200), ("int8", 300, 100), ("int16", 70_000, 30_000)):
        table = jnp.arange(num_rows, dtype=jnp.int32)
        ids = np.array([at], dtype)
        expected = np.arange(num_rows, dtype=np.int32)
        expected[at] += 1000
        update = jnp.array([1000], jnp.int32)
        for given in (ids, jnp.asarray(ids), make_plan(ids, num_rows)):
            oracle.assert_same(index_add(table, given, update), expected)
        oracle.assert_same(jax.jit(index_add)(table, jnp.asarray(ids), update), expected)
        zeros, slope = jnp.zeros(num_rows), jax.grad(lambda t, i: gather(t, i).sum())
        for found in (slope(zeros, ids), jax.jit(slope)(zeros, ids)):
            oracle.assert_same(found, np.eye(1, num_rows, at, dtype=np.float32)[0])


@case("int64-host-id-truncation")
def int64_host_id_truncation(device, rng):
    ids = np.array([2**32, 1], np.int64)
    assert not jax.config.jax_enable_x64
    with pytest.raises(IndexError, match=r"got ids\[0\] = 4294967296\."):
        make_plan(ids, 4)
    for given in (ids, ids.tolist(), ids.astype(np.uint64)):
        out = scatter_add(jnp.ones(2), given, num_rows=4, mode="drop")
        assert out.tolist() == [0, 1, 0, 0]
    with oracle.x64():
        traced = jax.jit(lambda i: scatter_add(jnp.ones(2, jnp.float32), i, num_rows=4))
        assert traced(jnp.asarray(ids)).tolist() == [0, 1, 0, 0]


@case("element-offset-2-31-gather")
def element_offset_2_31_gather(device, rng):
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.platform == "cpu" and pages < 12 * 2**30:
        pytest.skip("needs 12 GiB of free memory")
    rows, width = 262_144, 8_960
    wanted = np.array([239_673, 239_674, 255_999, 262_143])
    column = jnp.arange(width, dtype=jnp.uint8)[None]
    formula = lambda r: (r * 7 + r // 251).astype(jnp.uint8)[:, None] + column
    expected = np.asarray(formula(jnp.asarray(wanted, jnp.int32)))
    make = jax.jit(lambda: formula(jnp.arange(rows, dtype=jnp.int32)))
    plan = make_plan(wanted, rows)
    table = make()
    oracle.assert_same(gather(table, plan), expected)
    del table
    kind = jnp.bfloat16 if device.platform != "cpu" else jnp.uint8
    update = jnp.asarray(expected).astype(kind)
    summed = scatter_add(update, plan)
    oracle.assert_same(summed[wanted], np.asarray(update))
    untouched = np.setdiff1d([0, 5, *(wanted - 1), *(wanted[:3] + 1)], wanted)
    assert not np.asarray(summed[untouched]).any()


@case("edge-count-and-ptr-2-31")
def edge_count_and_ptr_2_31(device, rng):
    # A view of one element, counted before anything is read.
    ids = np.broadcast_to(np.int8(0), (2**31 + 8,))
    with pytest.raises(ValueError) as refused:
        make_plan(ids, 2049)
    assert str(refused.value) == (
        "jax_index.make_plan: ids must be at most 2147483647 entries, got 2147483656 entries. "
        "Split the edges: positions are 32-bit."
    )
    with pytest.raises(ValueError, match="must be at most 2147483647 at its end"):
        jax_index.make_plan_from_indptr(np.arange(2050) * 2**20)


@case("f32-one-hot-bin-saturation")
def f32_one_hot_bin_saturation(device, rng):
    plan = jax_index.make_plan_from_indptr([0, 2**25])
    assert scatter_add(jnp.ones(2**25, jnp.float32), plan).tolist() == [33_554_432]


@case("half-accumulator-saturation")
def half_accumulator_saturation(device, rng):
    one = lambda count, dtype: jnp.ones(count, dtype)
    zero = lambda count: np.zeros(count, int)
    assert scatter_add(one(512, jnp.bfloat16), zero(512), num_rows=1).tolist() == [512]
    alternate = np.arange(1024) % 2
    assert scatter_add(one(1024, jnp.bfloat16), alternate, num_rows=2).tolist() == [512] * 2
    assert scatter_add(one(4096, jnp.float16), zero(4096), num_rows=1).tolist() == [4096]
    ids = rng.integers(0, 5000, 100_000)
    y = rng.standard_normal((100_000, 4)).astype(jnp.bfloat16)
    exact = np.zeros((5000, 4))
    np.add.at(exact, ids, y.astype(np.float64))
    plan = make_plan(ids, 5000)
    _, back = jax.vjp(lambda v: gather(v, plan), jnp.zeros((5000, 4), jnp.bfloat16))
    nearest = exact.astype(jnp.bfloat16)
    ulp = np.abs(nearest.astype(np.float64)) * 2.0**-7 + 1e-30
    for out in (scatter_add(jnp.asarray(y), plan), back(jnp.asarray(y))[0]):
        assert out.dtype == jnp.bfloat16
        assert (np.abs(np.asarray(out).astype(np.float64) - nearest.astype(float)) <= ulp).all()


@case("inf-nan-stay-in-their-segment")
def inf_nan_stay_in_their_segment(device, rng):
    ids = [0, 0, 1, 1, 2]
    for poison in (jnp.inf, jnp.nan):
        data = jnp.array([1.0, 2.0, poison, 4.0, 5.0])
        out = both(lambda v: scatter_add(v, ids, num_rows=3), data)
        np.testing.assert_array_equal(out, [3, poison, 5])
        slope = both(jax.grad(lambda v: scatter_add(v, ids, num_rows=3)[::2].sum()), data)
        assert slope.tolist() == [1, 1, 0, 0, 1]


@case("empty-segments-everywhere")
def empty_segments_everywhere(device, rng):
    data, ids = jnp.arange(1.0, 6.0), [1, 1, 3, 3, 3]
    total = lambda v: scatter_add(v, ids, num_rows=6)
    assert both(total, data).tolist() == [0, 3, 0, 12, 0, 0]
    slope = both(jax.grad(lambda v: (total(v) ** 2).sum()), data)
    assert slope.tolist() == [6, 6, 24, 24, 24]


@case("zero-sizes")
def zero_sizes(device, rng):
    for m, n, width in ((0, 3, 2), (3, 0, 2), (3, 3, 0), (0, 0, 2), (0, 0, 0)):
        ids = np.full(m, -1) if n == 0 else np.arange(m) % n
        plan = make_plan(ids, n, mode="drop")
        x, y = jnp.ones((n, width)), jnp.ones((m, width))
        taken, summed = both(gather, x, plan.generic), both(scatter_add, y, plan)
        assert (taken.shape, summed.shape) == ((m, width), (n, width))
        assert both(lambda a, b, p=plan: index_add(a, p, b), x, y).shape == (n, width)
        assert jax.grad(lambda v, p=plan: (gather(v, p) ** 2).sum())(x).shape == x.shape
        batch = jax.vmap(lambda v, p=plan: scatter_add(v, p))(jnp.ones((2, m, width)))
        assert batch.shape == (2, n, width)
        if m == 0:
            assert not np.asarray(summed).any()
        if n == 0:
            assert not np.asarray(taken).any()
    with pytest.raises(IndexError, match=r"in \[0, 0\) \(num_rows is 0\), got ids\[0\] = 0\."):
        make_plan([0], 0)


@case("sorted-flag-lied")
def sorted_flag_lied(device, rng):
    data, ids = jnp.array([1.0, 2.0, 4.0]), [1, 0, 1]
    assert scatter_add(data, ids, num_rows=2).tolist() == [2, 5]
    # Order is looked at, not declared.
    assert not make_plan(ids, 2).identity
    with pytest.raises(TypeError, match="unexpected keyword argument 'sorted'"):
        make_plan(ids, 2, sorted=True)


@case("unique-flag-lied")
def unique_flag_lied(device, rng):
    data, ids = jnp.array([1.0, 2.0, 4.0]), [1, 1, 0]
    assert scatter_add(data, ids, num_rows=2).tolist() == [4, 3]
    with pytest.raises(TypeError, match="unexpected keyword argument 'unique'"):
        make_plan(ids, 2, unique=True)


@case("transposed-and-strided-input")
def transposed_and_strided_input(device, rng):
    x = jnp.arange(6.0).reshape(2, 3)
    ids = [0, 0, 1]
    assert both(lambda v: scatter_add(v.T, ids, num_rows=2), x).tolist() == [[1, 7], [2, 5]]
    along = both(lambda v: scatter_add(v, ids, num_rows=2, axis=1), x)
    assert along.tolist() == [[1, 2], [7, 5]]
    rows = jnp.arange(12.0).reshape(6, 2)
    strided = both(lambda v: scatter_add(v[::2], ids, num_rows=2), rows)
    assert strided.tolist() == [[4, 6], [8, 9]]
    wide = both(lambda v: scatter_add(jnp.broadcast_to(v, (3, 2)), ids, num_rows=2), rows[0])
    assert wide.tolist() == [[0, 2], [0, 1]]


@case("two-dim-ids")
def two_dim_ids(device, rng):
    with pytest.raises(ValueError, match=r"ids must be one-dimensional, got shape \(2, 2\)\."):
        scatter_add(jnp.ones((2, 2)), [[0, 1], [1, 0]], num_rows=2)


@case("bitwise-repeat")
def bitwise_repeat(device, rng):
    for num_rows, width in ((10, 1), (1000, 3), (10, 16)):
        ids = rng.integers(0, num_rows, 60_000)
        plan = make_plan(ids, num_rows)
        y = jnp.asarray(rng.standard_normal((60_000, width)).astype(np.float32))
        x = jnp.zeros((num_rows, width))
        back = lambda v, plan=plan, x=x: jax.vjp(lambda u: gather(u, plan), x)[1](v)[0]
        first = np.asarray(scatter_add(y, plan)).tobytes()
        for _ in range(10):
            assert np.asarray(scatter_add(y, plan)).tobytes() == first
            assert np.asarray(jax.jit(scatter_add)(y, plan)).tobytes() == first
            assert np.asarray(jax.jit(back)(y)).tobytes() == first
        each = jax.lax.map(lambda _, y=y, plan=plan: scatter_add(y, plan), jnp.arange(5))
        assert {np.asarray(out).tobytes() for out in each} == {first}


THREADS = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
import hashlib, jax.numpy as jnp, numpy as np, jax_index
rng = np.random.default_rng(1)
ids, y = rng.integers(0, 100, 100_000), rng.standard_normal((100_000, 3)).astype(np.float32)
out = jax_index.scatter_add(jnp.asarray(y), ids, num_rows=100)
print(hashlib.sha256(np.asarray(out).tobytes()).hexdigest())
"""


@case("thread-count-independence")
def thread_count_independence(device, rng):
    if device.platform != "cpu":
        pytest.skip("a GPU has no number of threads to choose")
    rng = np.random.default_rng(1)  # as in THREADS
    ids, y = rng.integers(0, 100, 100_000), rng.standard_normal((100_000, 3)).astype(np.float32)
    here = np.asarray(scatter_add(jnp.asarray(y), ids, num_rows=100)).tobytes()
    alone = run_python(THREADS, NPROC="1")
    assert alone.stdout.strip() == hashlib.sha256(here).hexdigest(), alone.stderr


@case("subnormals-and-ftz")
def subnormals_and_ftz(device, rng):
    tiny = np.full(4, 1e-40, np.float32)
    total = both(lambda v: scatter_add(v, [0] * 4, num_rows=1), jnp.asarray(tiny))
    oracle.assert_same(total, tiny[:1] * 4)
    values = np.where(rng.random(200_000) < 0.5, 1e-40, 1.0e-37).astype(np.float32)
    ids = rng.integers(0, 2000, 200_000)
    expected = oracle.scatter_add(values, ids, 2000)
    oracle.assert_same(scatter_add(jnp.asarray(values), ids, num_rows=2000), expected)


@case("vmap-shared-ids")
def vmap_shared_ids(device, rng):
    plan = make_plan(rng.integers(0, 50, 250), 50)
    for in_axis, out_axis in ((0, 0), (2, 2), (1, 1)):
        program = jax.jit(jax.vmap(lambda v: scatter_add(v, plan), in_axis, out_axis))
        shape = [250, 16]
        shape.insert(in_axis, 4)
        text = program.lower(jnp.ones(shape)).as_text()
        assert text.count("custom_call @jax_index.scatter_add(") == 1
        assert not any(word in text for word in ("while", "transpose", "broadcast"))


@case("plan-not-baked-into-program")
def plan_not_baked_into_program(device, rng):
    def length(m, use):
        plan = make_plan(np.arange(m) % 7, 7)
        return len(jax.jit(use).lower(jnp.ones(7), plan).as_text())

    def scanned(v, plan):
        step = lambda c, _: (scatter_add(gather(c, plan), plan), None)
        return jax.lax.scan(step, v, length=3)[0]

    for use in (lambda v, plan: gather(v, plan), scanned):
        assert abs(length(100_000, use) - length(100, use)) < 2000  # digits of shapes


@case("hessian-exact")
def hessian_exact(device, rng):
    v = jnp.array([0.0, 1.0, 2.0])
    energy = lambda v: (scatter_add(v, [0, 0, 1], num_rows=2) ** 2).sum()
    expected = [[2, 2, 0], [2, 2, 0], [0, 0, 2]]
    assert both(jax.jacrev(jax.jacrev(energy)), v).tolist() == expected
    of_norm = jax.grad(lambda v: (jax.grad(energy)(v) ** 2).sum())
    assert of_norm(v).tolist() == [16, 16, 16]


@case("jvp-alone-under-jit")
def jvp_alone_under_jit(device, rng):
    senders, receivers = rng.integers(0, 6, 10), rng.integers(0, 6, 10)
    with oracle.x64():
        S, R = (jnp.asarray(np.eye(6)[ids]) for ids in (senders, receivers))
        h, direction = (jnp.asarray(rng.standard_normal(6)) for _ in range(2))

        def energy(h):
            edges = jnp.sin(gather(h, senders) * gather(h, receivers))
            return (scatter_add(edges, receivers, num_rows=6) ** 2).sum()

        dense = lambda h: ((R.T @ jnp.sin((S @ h) * (R @ h))) ** 2).sum()
        product = lambda f: jax.grad(lambda v: jnp.vdot(jax.grad(f)(v), direction))
        third = lambda f: jax.grad(lambda v: jnp.vdot(product(f)(v), direction))
        for derivative in (jax.grad, product, third):
            actual = jax.jit(derivative(energy))(h)
            np.testing.assert_allclose(actual, derivative(dense)(h), rtol=1e-12, atol=1e-12)


@case("int-operands-float0")
def int_operands_float0(device, rng):
    loss = lambda x, ids: (gather(x, ids) ** 2).sum()
    x, ids = jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 0, 2])
    assert both(jax.grad(loss), x, ids).tolist() == [2, 0, 12]
    for given in (ids, make_plan(ids, 3)):
        of_x, of_ids = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True))(x, given)
        assert of_x.tolist() == [2, 0, 12]
        assert {leaf.dtype for leaf in jax.tree.leaves(of_ids)} == {jax.dtypes.float0}
        _, back = jax.vjp(loss, x, given)
        assert jax.tree.structure(back(1.0)[1]) == jax.tree.structure(given)


@case("one-trace-per-shape")
def one_trace_per_shape(device, rng):
    traces = []

    @jax.jit
    def step(plan, y):
        traces.append(1)
        return scatter_add(y, plan)

    for m, count in ((50, 10), (60, 2), (70, 2)):
        y = jnp.asarray(cases.small_integers(rng, (m,), "float32"))
        for _ in range(count):
            ids = rng.integers(0, 9, m)
            oracle.assert_same(step(make_plan(ids, 9).generic, y), oracle.scatter_add(y, ids, 9))
    assert len(traces) == 3


@case("static-plan-equality")
def static_plan_equality(device, rng):
    traces = []

    def step(plan, y):
        traces.append(1)
        return scatter_add(y, plan)

    call = jax.jit(step, static_argnums=0)
    ids = rng.integers(0, 9, 50)
    y = jnp.asarray(cases.small_integers(rng, (50,), "float32"))
    first, same = make_plan(ids, 9), make_plan(ids.copy(), 9)
    expected = oracle.scatter_add(y, ids, 9)
    ids[3] = (ids[3] + 1) % 9
    other = make_plan(ids, 9)
    assert first == same != other
    for plan in (first, same):
        oracle.assert_same(call(plan, y), expected)
    assert len(traces) == 1
    oracle.assert_same(call(other, y), oracle.scatter_add(y, ids, 9))
    assert len(traces) == 2


@case("import-without-gpu")
def import_without_gpu(device, rng):
    code = """
import jax_index
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
import jax, jax.numpy as jnp
with jax.default_device(jax.devices("cpu")[0]):
    assert jax_index.scatter_add(jnp.ones(3), [1, 1, 0], num_rows=2).tolist() == [1, 2]
"""
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@case("ffi-api-floor")
def ffi_api_floor(device, rng):
    running = _native.runtime_api_version()
    for native in (_native.CPU, _native.CUDA):
        if native.module is not None:
            built = native.info["ffi_api_version"]
            assert built[0] == running[0]
            assert built[1] <= running[1]
    # The build takes the headers of the oldest supported jaxlib, and no other.
    settings = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert all(floor in settings for floor in ('"jaxlib==0.8.0"', '"jax>=0.8.0"'))
    assert "a newer jaxlib" in _native.incompatible((0, 9), (0, 3))


@case("registration-order-platform")
def registration_order_platform(device, rng):
    program = jax.jit(lambda v: gather(v, make_plan([1, 0], 2)))
    lowered = lambda p: program.trace(jnp.ones(2)).lower(lowering_platforms=(p,)).as_text()
    with warnings.catch_warnings(action="ignore"):  # one a process: another test may have had it
        assert "custom_call" not in lowered("tpu")
    assert ("@jax_index.gather" in lowered("cpu")) == (_native.CPU.module is not None)


@case("unknown-gpu-arch")
def unknown_gpu_arch(device, rng):
    build = (Path(__file__).parents[1] / "CMakeLists.txt").read_text()
    assert '"${JI_OLDEST}-virtual")' in build, "PTX, for drivers to compile from"
    if _native.CUDA.module is None:
        return
    names = _native.CUDA.info["cuda_architectures"].split()
    virtual = [int(name.split("-")[0]) for name in names if name.endswith("virtual")]
    # Real architectures alone are what somebody asked for by CUDAARCHS.
    assert virtual in ([min(int(name.split("-")[0]) for name in names)], [])


@case("clear-size-errors")
def clear_size_errors(device, rng):
    y, ids = jnp.ones(2), [0, 1]
    for bad, kind in ((2.0, TypeError), (-1, ValueError), (None, ValueError), ("2", TypeError)):
        with pytest.raises(kind, match=r"^jax_index\.scatter_add: num_rows must be .+, got .+\. "):
            scatter_add(y, ids, num_rows=bad)
    with pytest.raises(TypeError, match=r"got a traced array .* mark the argument static"):
        jax.jit(lambda n: scatter_add(y, ids, num_rows=n))(2)
    with pytest.raises(TypeError, match="ids must be an integer array, got dtype float64"):
        scatter_add(y, [0.0, 1.0], num_rows=2)
    with pytest.raises(ValueError, match=r"y must be an array with 3 entries .* got shape \(2,\)"):
        scatter_add(y, [0, 1, 1], num_rows=2)
    for given in (ids, tuple(ids), np.array(ids, np.int64)):
        assert scatter_add(y, given, num_rows=np.int64(3)).tolist() == [1, 1, 0]


@pytest.mark.parametrize("name", CASES)
def test_reported(name, device, rng):
    CASES[name](device, rng)
