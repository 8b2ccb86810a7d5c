# SPDX-License-Identifier: Apache-2.0
"""The only module that touches the compiled parts: it loads, checks and registers them.

Nothing here starts a JAX back end: registration is kept by JAX until one exists.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

PREFIX = "jax_index."


@dataclass
class Native:
    """One compiled module, or the reason why it cannot be used."""

    name: str
    platform: str
    module: ModuleType | None = None
    reason: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    handlers: frozenset[str] = frozenset()


def runtime_api_version() -> tuple[int, int]:
    """Return the version of XLA's FFI that the running jaxlib speaks, read from its headers."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    text = header.read_text()
    numbers = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    if any(number is None for number in numbers):
        raise ImportError(f"{header} does not state its FFI version")
    return tuple(int(number[1]) for number in numbers if number)  # type: ignore[return-value]


def incompatible(built: tuple[int, int], running: tuple[int, int]) -> str:
    """Say why a module built for `built` cannot run under `running`; empty where it can."""
    if built[0] == running[0] and built[1] <= running[1]:
        return ""
    return (
        f"it was built for XLA FFI {built[0]}.{built[1]} and the running jaxlib speaks "
        f"{running[0]}.{running[1]}; install jax_index again with `pip install .` "
        "(with build isolation), or a newer jaxlib"
    )


def _find_installed(name: str) -> None:
    """Let the package of a checkout find the compiled modules of the installed one.

    Python puts the working directory first, so that in the root of a checkout ``import jax_index``
    finds the sources, beside which nothing is compiled. The installed copy is used only where it
    has the same version.
    """
    import jax_index

    if importlib.util.find_spec(f"jax_index.{name}") is not None:
        return
    try:
        installed = importlib.metadata.distribution("jax_index")
    except importlib.metadata.PackageNotFoundError:
        return
    folder = Path(str(installed.locate_file("jax_index")))
    if installed.version == jax_index.__version__ and any(folder.glob(f"{name}.*")):
        if str(folder) not in jax_index.__path__:
            jax_index.__path__.append(str(folder))
        importlib.invalidate_caches()


def _load(name: str, platform: str) -> Native:
    native = Native(name, platform)
    _find_installed(name)
    try:
        module = importlib.import_module(f"jax_index.{name}")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == f"jax_index.{name}"
        native.reason = "it was not built" if missing else f"it does not load ({error})"
        return native
    native.info = module.build_info()
    native.reason = incompatible(native.info["ffi_api_version"], runtime_api_version())
    if native.reason:
        return native
    native.module = module
    registrations = module.registrations()
    for op, handler in registrations.items():
        jax.ffi.register_ffi_target(PREFIX + op, handler, platform=platform, api_version=1)
    native.handlers = frozenset(registrations)
    return native


CPU = _load("_cpu", "cpu")
CUDA = _load("_cuda", "CUDA")

# The ops that programs may call a kernel for, filled as primitives are defined.
LOWERED: set[str] = set()

_warned: set[str] = set()


def lowering(op: str, native: Native, reference: Callable[..., Any]) -> Callable[..., Any]:
    """Return the lowering rule of `op` on one platform.

    The kernel where the compiled part is there; else one warning and the pure-JAX meaning. The
    parameters of the primitive that the kernel takes become attributes through `attributes`. With
    `aliased` the first result takes the buffer of the first operand; XLA copies an operand that is
    needed afterwards.
    """
    from jax.interpreters import mlir

    LOWERED.add(op)
    kernel = jax.ffi.ffi_lowering(PREFIX + op)
    kernel_aliased = jax.ffi.ffi_lowering(PREFIX + op, operand_output_aliases={0: 0})
    fallback = mlir.lower_fun(reference, multiple_results=True)

    def rule(
        ctx: Any, *operands: Any, attributes: dict[str, Any], aliased: bool = False, **params: Any
    ) -> Any:
        if native.module is not None:
            return (kernel_aliased if aliased else kernel)(ctx, *operands, **attributes)
        missing(native.name, native.reason)
        return fallback(ctx, *operands, **params)

    return rule


def fallback_lowering(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Return the lowering rule of every platform that has no kernels."""
    from jax.interpreters import mlir

    fallback = mlir.lower_fun(reference, multiple_results=True)

    def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
        platforms = ctx.platforms or ctx.module_context.platforms
        missing(" and ".join(platforms), "it has kernels for cpu and cuda alone")
        return fallback(ctx, *operands, **params)

    return rule


def missing(name: str, reason: str) -> None:
    """Warn once that the pure-JAX lowering is used; an error under JAX_INDEX_REQUIRE_NATIVE=1."""
    message = (
        f"jax_index.{name}: the compiled part is not used, because {reason}. The program uses the "
        "pure-JAX lowering: slower, and its bits are not promised. "
        "Set JAX_INDEX_REQUIRE_NATIVE=1 to make this an error."
    )
    if os.environ.get("JAX_INDEX_REQUIRE_NATIVE") == "1":
        raise RuntimeError(message)
    if name not in _warned:
        _warned.add(name)
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def backends() -> dict[str, str]:
    """Say, for each platform, which lowering programs get and why.

    Returns:
        A dict from ``"cpu"`` and ``"cuda"`` to ``"kernels (...)"`` or ``"pure JAX (reason)"``;
        other platforms always get the pure-JAX lowering, whose bits are not promised. No JAX back
        end is started.

    Example:
        >>> import jax_index
        >>> sorted(jax_index.backends())
        ['cpu', 'cuda']
    """
    return {
        native.platform.lower(): (
            f"kernels ({_details(native)})" if native.module else f"pure JAX ({native.reason})"
        )
        for native in (CPU, CUDA)
    }


def _details(native: Native) -> str:
    info = native.info
    api = ".".join(str(part) for part in info["ffi_api_version"])
    if native is CPU:
        return f"{info['cpu_target']}, {info['compiler']}, XLA FFI {api}"
    runtime = info["cuda_runtime"]
    return (
        f"CUDA {runtime // 1000}.{runtime % 1000 // 10}, architectures "
        f"{info['cuda_architectures']}, XLA FFI {api}"
    )
