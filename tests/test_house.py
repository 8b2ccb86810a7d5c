# SPDX-License-Identifier: Apache-2.0
"""The rules of the source: who may use whom, what every public name has, and what never occurs."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import jax_index
from jax_index import _native, _plan

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "cpp").is_dir():
    pytest.skip("needs the source tree", allow_module_level=True)

SKIPPED = {"build", "dist", "results"}


def files(*suffixes, under="."):
    """The source files with one of these suffixes, without hidden and built ones."""
    found = []
    for path in sorted((ROOT / under).rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.suffix in suffixes and not any(p.startswith(".") or p in SKIPPED for p in parts):
            found.append(path)
    assert found
    return found


CPP = files(".h", ".cc", ".cu", ".cuh", under="cpp")
PYTHON = files(".py", under="jax_index")
PUBLIC = list(jax_index.__all__)
NO_OPS = ("backends", "export_checks", "live_plans", "make_plan", "make_plan_from_indptr")
OPS = [n for n in PUBLIC if not inspect.isclass(getattr(jax_index, n)) and n not in NO_OPS]
CMAKE = (ROOT / "CMakeLists.txt").read_text()
CMAKE_OPS = re.search(r"^set\(OPS ([a-z0-9_\s]+)\)$", CMAKE, re.M)[1].split()


def name_of(path):
    return str(path.relative_to(ROOT))


def layer(path):
    """The layer of a C++ file, and whose code it may include."""
    folder = path.relative_to(ROOT / "cpp").parts[0]
    if folder == "module.cc":
        return "module"
    if folder == "ops":
        kind = re.search(r"_(cpu\.cc|cuda\.cu|ffi\.cc)$", path.name)
        return f"ops {kind[1].split('.')[0]}" if kind else "ops header"
    return "plan ffi" if path.name == "plan_ffi.cc" else folder


# layer: (folders whose headers it may include, other libraries it may include)
MAY_INCLUDE = {
    "core": ({"core"}, set()),
    "plan": ({"core", "plan"}, set()),
    "plan ffi": ({"core", "plan", "ffi"}, {"xla"}),
    "launch": ({"core", "launch"}, {"cuda"}),
    "ops header": ({"core"}, set()),
    "ops cpu": ({"core", "launch", "ops"}, set()),
    "ops cuda": ({"core", "launch", "ops"}, {"cuda"}),
    "ffi": ({"core", "launch", "ffi"}, {"xla", "cuda"}),
    "ops ffi": ({"core", "ffi", "ops"}, {"xla"}),
    "module": ({"core", "plan", "ffi"}, {"xla", "cuda", "nanobind"}),
}


@pytest.mark.parametrize("path", CPP, ids=name_of)
def test_cpp_includes_follow_the_layers(path):
    folders, libraries = MAY_INCLUDE[layer(path)]
    for kind, target in re.findall(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', path.read_text(), re.M):
        top = target.split("/")[0]
        if kind == "<" or top == "xla":
            library = next(
                (lib for lib in ("xla", "nanobind", "cuda") if top.startswith(lib)), None
            )
            assert library is None or library in libraries, target
        elif target != "jax_index_ops.inc":
            assert (ROOT / "cpp" / target).is_file(), target
            assert top in folders, target


# module: the modules of the package that it may import.
MAY_IMPORT = {
    "_ad": {"_check", "_noted", "_sharding", "_store"},
    "_check": set(),
    "_fused": {"_ad"},
    "_native": set(),
    "_noted": set(),
    "_storage": set(),
    "_sharding": {"_check"},
    "_parts": {"_sharding", "_traced"},
    "_primitive": {"_check", "_native", "_parts", "_sharding", "_store"},
    "_store": {"_check", "_csr", "_native"},
    "_static": {"_check", "_graph", "_plan", "_store"},
    "_fill": {"_check", "_storage"},
    "_file": {"_check"},
    "_ids": {"_check", "_storage"},
    "_csr": {"_native"},
    "_traced": {"_csr", "_native"},
    "_plan": {"_check", "_csr", "_file", "_ids", "_traced"},
    "_cache": {"_check", "_ids", "_plan", "_static"},
    "_ends": {"_check", "_csr", "_ids", "_plan"},
    "_matrices": {"_check", "_csr", "_ends", "_plan"},
    "_graph": {"_csr", "_ends", "_file", "_matrices", "_plan"},
    "_blocks": set(),
    "_partition": {"_blocks", "_check", "_csr", "_graph", "_ids", "_plan", "_primitive", "ops"},
    "_export": {"_graph", "_native", "_plan", "_static"},
}
MAY_IMPORT["primitives"] = {"_ad", "ops"}
OP_MODULES = {"_ad", "_blocks", "_cache", "_check", "_fill", "_fused", "_graph", "_ids", "_plan"}
OP_MODULES |= {"_primitive", "_sharding", "_static", "_storage", "ops"}


def imports(path):
    """Modules of this package, and of the repository, that a Python file imports at its top."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports alone"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_python_imports_follow_the_layers(path):
    module = ".".join(path.relative_to(ROOT / "jax_index").with_suffix("").parts)
    found = set(imports(path))
    assert not {name for name in found if name.split(".")[0] in ("tests", "bench")}
    assert not {name for name in found if name.startswith("jax._src")}
    allowed = OP_MODULES if module.startswith("ops.") else MAY_IMPORT.get(module)
    if allowed is None:  # the package itself, the golden bits and the command line may use all
        return
    inside = {name.split(".")[1] for name in found if name.startswith("jax_index.")}
    assert inside <= allowed | {module}


def test_benchmarks_use_the_package_and_no_tests():
    for path in files(".py", under="bench"):
        assert not {name for name in imports(path) if name.split(".")[0] == "tests"}, path


@pytest.mark.parametrize("path", files(".py", under="jax_index/ops"), ids=name_of)
def test_backward_rules_call_ops_that_have_rules_themselves(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_bwd"):
            for call in ast.walk(node):
                assert not (isinstance(call, ast.Attribute) and call.attr == "bind"), node.name


@pytest.mark.parametrize("path", files(".py", under="jax_index/ops"), ids=name_of)
def test_rules_and_traces_know_the_mode_of_differentiation(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "jax":
            assert node.attr not in ("custom_vjp", "custom_jvp", "jit"), f"line {node.lineno}"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name):
    value = getattr(jax_index, name)
    text = inspect.getdoc(value)
    assert text
    assert text.splitlines()[0].endswith(".")
    readme, changelog = (ROOT / "README.md").read_text(), (ROOT / "CHANGELOG.md").read_text()
    rows = [line for line in readme.splitlines() if line.startswith("| `")]
    assert any(re.match(rf"\| `{name}[(`]", row) for row in rows), "a row of a README table"
    assert re.search(rf"`{name}[(`]", changelog), "a line of the changelog"
    if inspect.isclass(value):
        return
    sections = re.findall(r"^([A-Z]\w+):$", text, re.M)
    wanted = ["Returns"]
    if inspect.signature(value).parameters:
        wanted = ["Args", "Returns", "Raises"]
    if name in OPS:
        wanted += ["Gradient", "Determinism"]
    assert [s for s in sections if s in wanted] == wanted
    assert sections[-1] == "Example"
    for argument in inspect.signature(value).parameters:
        assert re.search(rf"^    {argument}: ", text, re.M), argument


def test_the_package_exports_what_it_lists():
    source = ast.parse((ROOT / "jax_index" / "__init__.py").read_text())
    names = [
        alias.asname
        for node in source.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(names) == sorted(jax_index.__all__) == jax_index.__all__
    assert (ROOT / "jax_index" / "py.typed").is_file()


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_examples_in_docstrings(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__main__":
        return
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    failed, _ = doctest.testmod(module)
    assert failed == 0


def test_examples_in_the_readme():
    # A block that needs a further package says so, and runs where the package is installed.
    pattern = r"(?:^<!-- needs (\w+) -->\n)?^```python\n(.*?)^```"
    blocks = re.findall(pattern, (ROOT / "README.md").read_text(), re.M | re.S)
    assert {"", "flax", "equinox"} == {package for package, _ in blocks}
    for package, block in blocks:
        if package and importlib.util.find_spec(package) is None:
            continue
        example = doctest.DocTestParser().get_doctest(block, {}, "README.md", "README.md", 0)
        assert example.examples
        assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_no_assert_reaches_a_user(path):
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Assert), f"line {node.lineno}"


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_errors_of_the_api_come_from_one_place(path):
    if path.name in ("_check.py", "_native.py", "_primitive.py", "__main__.py"):
        return
    raised = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Raise)]
    assert not raised, [node.lineno for node in raised]


@pytest.mark.parametrize("path", CPP, ids=name_of)
def test_no_atomics_and_no_fast_math_in_kernels(path):
    text = re.sub(r"//[^\n]*", "", path.read_text())
    if path.name == "math.h":
        # The one place where a contraction is written: fma itself.
        text = re.sub(r"(__builtin_fmaf?|_mm\d*_fmadd_p[sd])\(", "(", text)
    assert not re.search(r"__builtin_fma|_fmadd_|std::fma", text)
    for word in (
        r"atomic(Add|CAS|Exch|Max|Min)",
        r"\bred\.",
        r"atomicrmw",
        r"std::atomic<(float|double)",
    ):
        assert not re.search(word, text), word
    for word in ("__fdividef", "__expf", "__logf", "__fmaf", "fmaf(", "__fmul_", "fast-math"):
        assert word not in text, word
    assert not re.search(r"#pragma\s+(GCC\s+optimize|STDC\s+FP_CONTRACT)", text)


def test_the_flags_that_keep_the_bits():
    for flag in ("-ffp-contract=off", "--fmad=false", "--ftz=false", "--prec-div=true"):
        assert flag in CMAKE, flag
    assert re.search(r"-Xcompiler=-ffp-contract=off", CMAKE)
    for flag in (
        "fast-math",
        "fast_math",
        "-Ofast",
        "fmad=true",
        "ftz=true",
        "funsafe",
        "fassociative",
    ):
        assert flag not in CMAKE, flag


def test_every_op_has_its_four_files():
    expected = {
        f"{op}{end}" for op in CMAKE_OPS for end in (".h", "_cpu.cc", "_cuda.cu", "_ffi.cc")
    }
    assert {path.name for path in (ROOT / "cpp" / "ops").iterdir()} == expected
    defined = [
        name
        for path in files(".py", under="jax_index/ops")
        for name in re.findall(r'_primitive\.define\(\s*"(\w+)"', path.read_text())
    ]
    # The arrays of static plans are no op of the user: jax_index/_store.py has their primitive.
    assert sorted([*defined, "static_arrays"]) == sorted(CMAKE_OPS)
    # The host sorts traced ids by its own kernel, a GPU by XLA's sort.
    for native, more in ((_native.CPU, {"plan_of_ids"}), (_native.CUDA, set())):
        if native.module is not None:
            assert native.handlers == set(CMAKE_OPS) | more


def test_python_and_cpp_agree_on_the_schedule():
    order, csr = ((ROOT / "cpp" / "core" / name).read_text() for name in ("order.h", "csr.h"))
    constant = lambda name: re.search(rf"constexpr i\d+ {name} = ([^;]+);", order)[1]  # noqa: E731
    assert int(constant("kChunk")) == 32
    assert constant("kGroup") == "kChunk * kChunk"
    assert _plan.GROUP == 32 * 32
    assert int(constant("kLongRow")) == _plan.LONG_ROW
    assert "num_edges / (kLongRow + 1) + 1" in csr
    assert _plan.num_tasks(10_000) == 10_000 // (_plan.LONG_ROW + 1) + 1


HIDDEN = [path for path in (ROOT / ".ci" / "run", ROOT / ".github") if path.exists()]
SOURCES = files(".py", ".h", ".cc", ".cu", ".cuh", ".txt", ".toml", ".md", ".yml")
SOURCES += [f for path in HIDDEN for f in (path.rglob("*.*") if path.is_dir() else [path])]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_file(path):
    text = path.read_text()
    assert path.stem not in ("utils", "util", "helpers", "helper", "common", "misc")
    if path.suffix in (".py", ".h", ".cc", ".cu", ".cuh"):
        assert "SPDX-License-Identifier: Apache-2.0" in text.splitlines()[0]
        assert len(text.splitlines()) <= 500
    # The repository speaks of itself alone: no path of one machine.
    for place in ("work", "tmp", "home", "root", "Users"):
        assert not re.search(rf"(?<![\w$/.}}])/{place}/", text), place
