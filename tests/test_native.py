# SPDX-License-Identifier: Apache-2.0
"""The compiled parts: found, missing, broken or too new; and the pure-JAX lowering behind them."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import textwrap
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import jax_index
from jax_index import _native

NOT_USED = (
    "jax_index.{name}: the compiled part is not used, because {reason}. The program uses the "
    "pure-JAX lowering: slower, and its bits are not promised. "
    "Set JAX_INDEX_REQUIRE_NATIVE=1 to make this an error."
)


def run(code, *options, **environment):
    """Run code in a process of its own, on the CPU, with every warning an error."""
    settings = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    settings = {name: value for name, value in settings.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(code)],
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_silent(done):
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr


@pytest.mark.parametrize("platforms", [None, "cpu"])
def test_import_is_silent_and_starts_no_back_end(platforms):
    done = run(
        """
        import jax_index
        from jax._src import xla_bridge
        jax_index.backends()
        assert jax_index.export_checks()
        assert not xla_bridge.backends_are_initialized()
        """,
        JAX_PLATFORMS=platforms,
    )
    assert_silent(done)


@pytest.mark.parametrize(
    "start",
    [
        "import jax; jax.devices(); import jax_index",
        "import jax_index, jax; jax.config.update('jax_platforms', 'cpu')",
    ],
)
def test_the_order_of_import_and_start_does_not_matter(start):
    platforms = None if "config" in start else "cpu"
    done = run(
        f"""
        {start}
        import jax.numpy as jnp
        out = jax.jit(lambda y: jax_index.scatter_add(y, [1, 1], num_rows=2))(jnp.ones(2))
        assert out.tolist() == [0, 2]
        """,
        JAX_PLATFORMS=platforms,
        # Changes nothing where the compiled part is there.
        JAX_INDEX_REQUIRE_NATIVE="1" if _native.CPU.module else "0",
    )
    assert_silent(done)


def test_a_missing_part_is_told_once_when_a_program_is_lowered():
    text = NOT_USED.format(name="_cpu", reason="it was not built")
    done = run(
        f"""
        import sys, warnings
        sys.modules["jax_index._cpu"] = None
        import jax_index, jax, jax.numpy as jnp
        assert jax_index.backends()["cpu"] == "pure JAX (it was not built)"
        plan = jax_index.make_plan([1, 1, 0], 2)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert jax_index.scatter_add(jnp.arange(3.0), plan).tolist() == [2, 1]
            assert jax_index.gather(jnp.arange(2.0), plan).tolist() == [1, 1, 0]
            jax.jit(lambda x: jax_index.index_add(x, plan, jnp.ones(3)))(jnp.ones(2))
        assert [(w.category, str(w.message)) for w in found] == [(RuntimeWarning, {text!r})]
        """
    )
    assert_silent(done)


def test_a_missing_part_is_an_error_where_it_is_required():
    text = NOT_USED.format(name="_cpu", reason="it was not built")
    done = run(
        f"""
        import sys
        sys.modules["jax_index._cpu"] = None
        import jax_index, jax.numpy as jnp
        plan = jax_index.make_plan([1, 1, 0], 2)
        for call in (
            lambda: jax_index.scatter_add(jnp.arange(3.0), plan),
            lambda: jax_index.gather(jnp.arange(2.0), plan),
        ):
            try:
                call()
            except RuntimeError as error:
                assert str(error) == {text!r}, error
            else:
                raise SystemExit("nothing was raised")
        """,
        JAX_INDEX_REQUIRE_NATIVE="1",
    )
    assert_silent(done)


def test_a_part_built_for_newer_headers_is_not_registered():
    running = _native.runtime_api_version()
    reason = _native.incompatible((running[0], running[1] + 1), running)
    done = run(
        f"""
        import importlib.machinery, sys, types, warnings
        newer = types.ModuleType("jax_index._cpu")
        newer.__spec__ = importlib.machinery.ModuleSpec("jax_index._cpu", None)
        newer.build_info = lambda: {{"ffi_api_version": ({running[0]}, {running[1] + 1})}}
        newer.registrations = lambda: sys.exit("registered")
        sys.modules["jax_index._cpu"] = newer
        import jax_index, jax.numpy as jnp
        assert jax_index.backends()["cpu"] == "pure JAX (" + {reason!r} + ")"
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert jax_index.gather(jnp.arange(2.0), [1, 1]).tolist() == [1, 1]
        assert [str(w.message) for w in found] == [{NOT_USED.format(name="_cpu", reason=reason)!r}]
        """
    )
    assert_silent(done)


def test_which_versions_go_together():
    for built, running in (((0, 1), (0, 1)), ((0, 1), (0, 5)), ((1, 0), (1, 3))):
        assert _native.incompatible(built, running) == ""
    for built, running in (((0, 4), (0, 3)), ((1, 0), (0, 9)), ((0, 9), (1, 0))):
        assert _native.incompatible(built, running) == (
            f"it was built for XLA FFI {built[0]}.{built[1]} and the running jaxlib speaks "
            f"{running[0]}.{running[1]}; install jax_index again with `pip install .` (with build "
            "isolation), or a newer jaxlib"
        )


def test_the_running_version_is_read_from_jaxlib(monkeypatch, tmp_path):
    assert _native.runtime_api_version() >= (0, 1)
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 3\n#define XLA_FFI_API_MINOR 14\n")
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    assert _native.runtime_api_version() == (3, 14)
    header.write_text("")
    with pytest.raises(ImportError, match="does not state its FFI version"):
        _native.runtime_api_version()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ImportError("libgcc_s.so.1: no such file"),
            "it does not load (libgcc_s.so.1: no such file)",
        ),
        (
            ModuleNotFoundError("No module named 'x'", name="x"),
            "it does not load (No module named 'x')",
        ),
        (ModuleNotFoundError("gone", name="jax_index._cpu"), "it was not built"),
    ],
)
def test_a_part_that_does_not_load_says_why(monkeypatch, error, reason):
    import_module = importlib.import_module

    def broken(name, *rest):
        if name == "jax_index._cpu":
            raise error
        return import_module(name, *rest)

    monkeypatch.setattr(importlib, "import_module", broken)
    native = _native._load("_cpu", "cpu")
    assert native.module is None
    assert native.reason == reason


def test_backends_names_both_platforms():
    found = jax_index.backends()
    assert set(found) == {"cpu", "cuda"}
    for text in found.values():
        assert text.startswith(("kernels (", "pure JAX ("))
        assert text.endswith(")")


@pytest.mark.skipif(_native.CPU.module is None, reason="there is no compiled part to ask")
def test_backends_describes_the_compiled_part():
    info = _native.CPU.info
    api = "{}.{}".format(*info["ffi_api_version"])
    expected = f"kernels ({info['cpu_target']}, {info['compiler']}, XLA FFI {api})"
    assert jax_index.backends()["cpu"] == expected
    assert info["version"] == jax_index.__version__


@pytest.mark.skipif(_native.CPU.module is None, reason="there is no compiled part to ask")
def test_the_target_of_the_cpu_can_be_named():
    code = "from jax_index import _native; print(_native.CPU.info['cpu_target'])"
    assert run(code, JAX_INDEX_CPU_TARGET="portable").stdout == "portable\n"
    # A name that means nothing changes nothing.
    unset = "JAX_INDEX_CPU_TARGET" not in os.environ
    if unset:
        best = _native.CPU.info["cpu_target"]
        assert run(code, JAX_INDEX_CPU_TARGET="abacus").stdout == f"{best}\n"


def lowered(platform):
    plan = jax_index.make_plan([1, 1, 0], 2)
    gather = partial(jax_index.gather, plan=plan, lowering="kernel")
    program = jax.jit(lambda x: jax_index.scatter_add(gather(x), plan))
    return program.trace(jnp.ones(2)).lower(lowering_platforms=(platform,)).as_text()


def test_lowering_for_a_gpu_from_any_machine(monkeypatch):
    monkeypatch.setattr(_native, "_warned", set())
    if _native.CUDA.module is not None:
        assert len(re.findall(r"@jax_index\.(gather|scatter_add)\(", lowered("cuda"))) == 2
        return
    text = NOT_USED.format(name="_cuda", reason=_native.CUDA.reason)
    with pytest.warns(RuntimeWarning) as found:
        assert "@jax_index." not in lowered("cuda")
    assert [str(w.message) for w in found] == [text]


def test_lowering_for_a_platform_without_kernels_is_pure_jax(monkeypatch):
    monkeypatch.setattr(_native, "_warned", set())
    for platform in ("tpu", "rocm"):
        text = NOT_USED.format(name=platform, reason="it has kernels for cpu and cuda alone")
        with pytest.warns(RuntimeWarning) as found:
            assert "@jax_index." not in lowered(platform)
        assert [str(w.message) for w in found] == [text]
    monkeypatch.setenv("JAX_INDEX_REQUIRE_NATIVE", "1")
    with pytest.raises(RuntimeError, match=r"jax_index\.tpu: the compiled part is not used"):
        lowered("tpu")
