"""The kernels become machine code, also where no GPU can run it: what the interpreter cannot see.

Inline assembly, launches that overlap and the memory a program needs exist only in compiled kernels. A cover of the
launches is compiled, in which every fact of a launch occurs; for Ampere every fact that Hopper's launches have not, and
those of tiles that are multiplied (`tests/compiled.py`). `--every-launch` has all of them compiled.

What was found in the code stands in `tests/compiled.json`, by all that it depends on: the kernel with what it calls, the facts
of the launch, the compiler, and how the code is looked at. A kernel that has no entry is compiled, and so is one of twelve that
have one, to be held to it. What is asked of what was found is asked each time. `python -m tests.compiled write` writes the file
anew; with another release of Triton all kernels are compiled. What was compiled is kept in pytest's cache (`--cache-clear`),
as long as no file of kernels changes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")
KERNELS = {
    *(
        "_join",
        "_meet",
        "_heads",
        "_gated",
        "_quantise",
        *("_convolve", "_delta_step"),
        *("_convolve_many", "_delta_solve", "_delta_scan", "_delta_gate"),
        "_skinny",
        "_gate_up",
        "_ring",
        "_w4a16_product",
        "_w4a16_unpack",
        "_mxfp4_product",
        "_mxfp4_many",
        "_choose",
        "_distinct",
        "_list",
        "_expert_gated",
        "_expert_down",
        *("_lay_out", "_many_gated", "_many_down", "_mapped_down"),
        "_add_up",
    ),
    *(TRAINING := ("forward_kernel", "of_queries_kernel", "of_keys_kernel")),
    *(ALONE := ("_count", "_decide", "_find", "_fill", "move_kernel", *TRAINING)),
    *("_search", "_settle", "tables_kernel"),
    *("append_kernel", "queries_kernel", "attend_kernel", "lone_kernel", "merge_kernel"),
    *("specialised_kernel", "specialised_eight_bits_kernel", "small_eight_bits_kernel"),
    "specialised_latents_kernel",
}
# Kernels that attention launches, and those between attention and attention.
PARTS = {
    "attention": (
        ATTENTION := {
            *("append_kernel", "queries_kernel", "attend_kernel", "lone_kernel", "merge_kernel"),
            *("specialised_kernel", "specialised_eight_bits_kernel", "small_eight_bits_kernel"),
            *("specialised_latents_kernel", "tables_kernel", "move_kernel", *TRAINING),
        }
    ),
    "products": KERNELS - ATTENTION,
}
# Facts that are asked for, at the least.
LEAST_ASKED = {
    **{(90, part): 1000 for part in PARTS},
    **{(86, "attention"): 300, (86, "products"): 250},
}
# Bytes that a program may have.
MOST_SHARED = {90: 232448, 86: 101376}
SPECIALISED = {"specialised_kernel", "specialised_eight_bits_kernel"}
LATENTS = {"specialised_latents_kernel"}
INTEGERS = {"small_eight_bits_kernel"}
PRODUCTS = {
    "_skinny",
    "_gate_up",
    "_ring",
    "_w4a16_product",
    "_mxfp4_product",
    "_mxfp4_many",
    "_expert_gated",
    "_expert_down",
    "_many_gated",
    "_many_down",
    "_mapped_down",
    *("_delta_solve", "_delta_scan"),
    "attend_kernel",
    *TRAINING,
    *SPECIALISED,
    *LATENTS,
    *INTEGERS,
}
MAPPED = {"_gate_up", "_ring", "_mapped_down", "attend_kernel", *SPECIALISED, *LATENTS}
ROWS = ["[1, 4] [32, 1] 1"]  # numbers of a thread, threads of a warp; warps side by side
RING_ROWS = ["[1, 1] [32, 1] 1", *ROWS]  # copies are one by one
SOURCES = Path(__file__).parents[1] / "src"
KNOWN = json.loads(Path(__file__).with_name("compiled.json").read_text(encoding="utf-8"))


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _last_name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else ""


KERNEL_FILES = {
    file: [
        node
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.FunctionDef) and "jit" in map(_last_name, node.decorator_list)
    ]
    for file in SOURCES.rglob("kernels/*.py")
}


class Compiler:
    """A process that has imported all that compiling needs, and compiles in copies of itself."""

    def __init__(self, folder: Path, notes: Path) -> None:
        place = {"TRITON_CACHE_DIR": str(folder), "TRITON_INTERPRET": "0"}
        self.notes = notes
        with notes.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.compiled"],
                cwd=Path(__file__).parents[1],
                env={**os.environ, **place},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )

    def said(self, capability: int, part: str, *words: str) -> list[Any]:
        """The lines of its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        limit = 3600 if words == ("every",) else 1800  # beside other work
        timer = Timer(limit, os.killpg, (self.process.pid, signal.SIGKILL))
        timer.start()
        try:
            print(capability, part, *words, file=self.process.stdin, flush=True)
            lines = []
            while not (line := self.process.stdout.readline()).startswith("ended"):
                assert line, self.notes.read_text()
                lines.append(line)
        finally:
            timer.cancel()
        assert line == "ended 0\n", self.notes.read_text()
        return [json.loads(line) for line in lines]

    def compiled(self, capability: int, part: str, compiles_every: bool) -> list[dict[str, Any]]:
        """Counts in the code of every kernel of a part; no fact that was asked for is in none of them."""
        *found, asked = self.said(capability, part, *["every"] * compiles_every)
        for kernel in found:
            entry = KNOWN["found"].get(kernel["key"], {})
            assert entry == {name: kernel[name] for name in entry}
        assert {kernel["capability"] for kernel in found} == {capability}
        assert len(asked) > LEAST_ASKED[capability, part]
        assert set(asked) <= {fact for kernel in found for fact in kernel["facts"]}
        return found


@pytest.fixture(scope="module")
def compiler(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compiler]:
    """With the folder of Triton's own cache: one that tests of the same kernels have filled, if pytest keeps anything."""
    cache, room = getattr(request.config, "cache", None), tmp_path_factory.mktemp("compiled")
    kept = room if cache is None else kept_in(cache.mkdir("compiled"), KERNEL_FILES)
    compiler = Compiler(kept, room / "notes")
    with compiler.process:
        yield compiler
        assert compiler.process.stdin is not None
        compiler.process.stdin.close()


def kept_in(place: Path, files: Iterable[Path]) -> Path:
    """The folder there for these files of kernels, byte by byte; those for other ones are removed."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    folder = place / digest.hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    for other in place.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def test_nothing_is_kept_of_kernels_that_have_changed(tmp_path: Path) -> None:
    files = [tmp_path / "one.py", tmp_path / "other.py"]
    place = tmp_path / "kept"
    place.mkdir()
    for file in files:
        file.write_text("1")
    first = kept_in(place, files)
    (first / "code").touch()
    assert kept_in(place, files[::-1]) == first
    assert (first / "code").exists()
    files[1].write_text("2")
    second = kept_in(place, files)
    assert list(place.iterdir()) == [second]
    assert second != first


@pytest.fixture
def compiles_every(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--every-launch"))


def assert_rows(found: list[dict[str, Any]], ringed: set[str]) -> None:
    """Products with weights of four bits hold rows; launches that ask for stages have a ring, and each one only."""
    products = [kernel for kernel in found if kernel["rows"] is not None]
    rows = [RING_ROWS if kernel["rings"] else ROWS for kernel in products]
    assert [kernel["rows"] for kernel in products] == rows
    assert all(len(kernel["rings"]) == (kernel["stages"] > 0) for kernel in products)
    both = {(kernel["kernel"], len(kernel["rings"])) for kernel in products}
    names = {kernel["kernel"] for kernel in products}
    assert both == {(name, 0) for name in names} | {(name, 1) for name in ringed}
    assert names == {"_w4a16_product", "_mxfp4_product"}
    # A launch has 48 KiB without asking the driver. Triton asks by the memory that it knows of, and it knows of no ring.
    assert all(sum(kernel["rings"]) + kernel["shared_memory"] <= 48 << 10 for kernel in products)
    assert not any(kernel["illegal"] for kernel in found)
    others = [kernel for kernel in found if kernel["rows"] is None]
    assert {kernel["kernel"] for kernel in others if kernel["rings"]} <= {"_mxfp4_many"}


def assert_no_rows(found: list[dict[str, Any]]) -> None:
    """No kernel has products in assembly or a ring of its own."""
    held = ("rows", "rings", "illegal", "meetings")
    assert not any(kernel[each] for kernel in found for each in held)


def assert_meetings(found: list[dict[str, Any]]) -> None:
    """Inputs are overwritten and multiplied behind a meeting of all warps each, and products are waited for together."""
    assert len(found) >= 3
    for kernel in found:
        assert re.fullmatch(r"[cb]*wbwbc+fbm{8}eb?wb+", kernel["meetings"]), kernel
        assert kernel["product_waits"] == 1, kernel
        # Triton asks for more than a launch has without asking; a program has room for both.
        assert kernel["shared_memory"] > 48 << 10, kernel
        assert kernel["shared_memory"] + sum(kernel["rings"]) <= MOST_SHARED[90], kernel


def compiled_for_hopper(compiler: Compiler, part: str, compiles_every: bool) -> list[Any]:
    """Every kernel waits for the launch in front and lets the next one in, on every path that needs it."""
    found = compiler.compiled(90, part, compiles_every)
    assert {kernel["kernel"] for kernel in found} == PARTS[part]
    # Triton's default is about to change, and 3.9 warns where a launch leaves it open.
    assert {kernel["kernel"] for kernel in found if kernel["fuses"] is None} == set()
    for kernel in found:
        # The padding's and the others'; those of each kind of warps; these begin when all in front has ended.
        paths = {
            "attend_kernel": 2,
            "lone_kernel": 2,
            "queries_kernel": 2,  # the first one's, and those that have something to do
            "small_eight_bits_kernel": 2,
            "specialised_kernel": 3,
            "specialised_latents_kernel": 3,  # warps that sum up, those that score, and the one that brings
            "_meet": 0,
        }
        paths |= dict.fromkeys(ALONE, 0)
        paths["append_kernel"] = 2 if kernel["stands"] else 1  # queries', too
        # One group of warps that multiply, or two.
        paths["specialised_eight_bits_kernel"] = 3 if kernel["threads"] == 384 else 4
        expected = paths.get(kernel["kernel"], 1)
        assert kernel["waits"] == kernel["lets_in"] == expected, kernel
        assert kernel["tensor_cores"] == (kernel["kernel"] in PRODUCTS), kernel
        assert kernel["shared_memory"] <= MOST_SHARED[90], kernel
    assert {kernel["kernel"] for kernel in found if kernel["tensor_maps"]} == MAPPED & PARTS[part]
    # Beside another launch it lets the next one in first, and waits at its end; early, it waits behind that.
    others = [kernel for kernel in found if kernel["order"] != kernel["waits"] * "wl"]
    orders = {(other["kernel"], other["order"]) for other in others}
    assert orders == {"attention": {("attend_kernel", "lwwl")}, "products": {("_join", "lw")}}[part]
    return found


def test_attention_for_hopper(compiler: Compiler, compiles_every: bool) -> None:
    found = compiled_for_hopper(compiler, "attention", compiles_every)
    assert_no_rows(found)
    assert {kernel["stands"] for kernel in found if kernel["kernel"] == "append_kernel"} == {
        False,
        True,
    }
    # Of the few rows of a second group both kernels have their own code, and do without it.
    few = {(kernel["kernel"], kernel["few"]) for kernel in found if kernel["few"] is not None}
    assert few == {(kernel, count) for kernel in SPECIALISED for count in (0, 16)}
    # A thread has 64 of a tile's weights.
    assert {kernel["hidden"] >= 64 for kernel in found if kernel["hidden"] is not None} == {True}


def test_products_for_hopper(compiler: Compiler, compiles_every: bool) -> None:
    found = compiled_for_hopper(compiler, "products", compiles_every)
    assert_rows(found, {"_w4a16_product", "_mxfp4_product"})
    assert_meetings([kernel for kernel in found if kernel["meetings"] is not None])
    assert not any(kernel["early"] for kernel in found if kernel["kernel"] == "_mxfp4_product")


def compiled_for_ampere(compiler: Compiler, part: str, compiles_every: bool) -> list[Any]:
    """Older devices know nothing of overlapping launches: none of it may be in the code."""
    found = compiler.compiled(86, part, compiles_every)
    assert {kernel["kernel"] for kernel in found} == PARTS[part] - {
        "_quantise",
        "_gate_up",
        "_ring",
        "_mxfp4_many",
        *("_lay_out", "_many_gated", "_many_down", "_mapped_down"),
        *SPECIALISED,
        *LATENTS,
        *INTEGERS,
    }
    for kernel in found:
        assert not kernel["waits"] + kernel["lets_in"] + kernel["tensor_maps"], kernel
        assert kernel["shared_memory"] <= MOST_SHARED[86], kernel
    assert all(kernel["tensor_cores"] == (kernel["kernel"] in PRODUCTS) for kernel in found)
    return found


def test_attention_for_ampere(compiler: Compiler, compiles_every: bool) -> None:
    assert_no_rows(compiled_for_ampere(compiler, "attention", compiles_every))


def test_products_for_ampere(compiler: Compiler, compiles_every: bool) -> None:
    assert_rows(compiled_for_ampere(compiler, "products", compiles_every), {"_w4a16_product"})


def test_most_of_what_would_be_compiled_is_known(compiler: Compiler) -> None:
    """A few kernels may change before the file is written anew."""
    keys = set[str]()
    for capability, part in LEAST_ASKED:
        *found, triton_here = compiler.said(capability, part, "keys")
        if triton_here != KNOWN["compiler"]:
            pytest.skip("the file was written with another build of Triton")
        keys.update(found)
    unknown = keys - set(KNOWN["found"])
    assert len(unknown) <= len(keys) // 4, "python -m tests.compiled write"


def test_every_kernel_is_compiled_here_and_has_a_name_of_its_own() -> None:
    """A kernel is launched if no other one calls it."""
    launched = Counter(
        node.name
        for file, functions in KERNEL_FILES.items()
        for node in functions
        if (file, node.name) not in _called_by_kernels()
    )
    assert launched == Counter(KERNELS)


def test_no_default_of_a_kernel_is_text() -> None:
    """Triton 3.6 takes numbers and truths that a call leaves out, and fails on text; 3.9, which compiles here, takes it."""
    functions = [(file, node) for file, found in KERNEL_FILES.items() for node in found]
    assert len(functions) > 60
    wrong = [
        (file.name, node.name)
        for file, node in functions
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults))
        if isinstance(default, ast.Constant) and not isinstance(default.value, int | float)
    ]
    assert wrong == []


@cache
def _called_by_kernels() -> set[tuple[Path, str]]:
    """The functions, each with its file, that stand in the body of another kernel."""
    called = set()
    for file, functions in KERNEL_FILES.items():
        homes = {node.name: (file, node.name) for node in functions}
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.ImportFrom) and node.module:
                room = SOURCES.joinpath(*node.module.split("."))
                for each in node.names:
                    homes[each.asname or each.name] = room.with_suffix(".py"), each.name
        for function in functions:
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id in homes and node.id != function.name:
                    called.add(homes[node.id])
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    home, name = homes.get(node.value.id, (file, ""))
                    called.add((home.with_suffix("") / f"{name}.py", node.attr))
    return called
