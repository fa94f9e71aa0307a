"""The machine code of a compiled kernel, told in numbers and short texts: no GPU is needed to see it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from itertools import compress
from typing import Any

import triton

ROWS = ("_w4a16_product", "_mxfp4_product")  # products in assembly
HIDING = (
    "specialised_kernel",
    "specialised_eight_bits_kernel",
)  # softmax, behind products of the same warps


def looked_at(name: str, options: Mapping[str, Any], kernel: Any) -> dict[str, Any]:
    """All that tests ask of the code of a kernel of this name, launched with these options."""
    code = kernel.asm["ptx"]
    return {
        "capability": kernel.metadata.target.arch,
        "fuses": options.get("enable_fp_fusion"),
        "waits": code.count("griddepcontrol.wait"),
        "lets_in": code.count("griddepcontrol.launch_dependents"),
        "order": "".join(re.findall(r"griddepcontrol\.(\w)", code)),  # w: waits, l: lets in
        "tensor_maps": code.count("cp.async.bulk.tensor"),
        "tensor_cores": "wgmma" in code or "mma.sync" in code,
        "shared_memory": kernel.metadata.shared,
        "hidden": hidden(kernel) if name in HIDING else None,
        "few": options.get("FEW"),
        "stands": options.get("STANDS"),
        "threads": int(re.findall(r"\.reqntid (\d+)", code)[0]),
        "rows": held_rows(kernel) if name in ROWS else None,
        "stages": options.get("STAGES") if name in ROWS else None,
        "early": early_reads(code),
        "rings": (rings := [int(size) for size in re.findall(r"\.b8 ring\[(\d+)\]", code)]),
        "illegal": illegal(kernel) if rings else 0,
        "meetings": meetings(code) if (is_wide := name == "_mxfp4_many") else None,
        "product_waits": machine_code(kernel).count("WARPGROUP.DEPBAR") if is_wide else None,
    }


def hidden(kernel: Any) -> int:
    """Exponentials between the wait for the scores and that for the values: products hide them.

    The assembler has been seen to move the second wait in front of them, and nothing else tells.
    """
    code = machine_code(kernel)
    between = re.findall(r"DEPBAR\.LE gsb0, 0x1(.*?)DEPBAR\.LE gsb0, 0x0", code, re.DOTALL)
    return min((found.count("MUFU.EX2") for found in between), default=0)


def meetings(code: str) -> str:
    """The order of a kernel that copies inputs and multiplies them, by letters.

    w: waits for copies, b: all warps meet, c: copies inputs, f: makes them visible, m: multiplies, e: waits for products.
    """
    letters = {
        r"cp\.async\.wait_group": "w",
        r"bar\.sync": "b",
        r"cp\.async\.cg": "c",
        r"fence\.proxy": "f",
        r"wgmma\.mma_async": "m",
        r"wgmma\.wait_group": "e",
    }
    found = re.findall("|".join(f"({each})" for each in letters), code)
    return "".join(next(compress(letters.values(), each)) for each in found)


def illegal(kernel: Any) -> int:
    """Copies to shared memory with two uniform registers: ptxas writes them, and they have a place for one."""
    copies = re.findall(r"LDGSTS\S* (.*);", machine_code(kernel))
    assert copies
    return sum(bool(re.match(r"\[[^]]*\bUR.*, desc\[UR", copy)) for copy in copies)


@cache
def machine_code(kernel: Any) -> str:
    """Its instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        words = [triton.knobs.nvidia.nvdisasm.path, "-c", "-ndf", file.name]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def early_reads(code: str) -> int:
    """Reads in front of the first wait that may find in the first-level cache what lay there before."""
    early, wait, _ = code.partition("griddepcontrol.wait")
    return len(re.findall(r"ld\.global(?!\.cg)", early)) if wait else 0


def held_rows(kernel: Any) -> list[str]:
    """How threads hold the operands of products and copies in assembly: each must have one row, of four or of one."""
    code = kernel.asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = #ttg\.blocked<\{(.*)\}>$", code, re.MULTILINE))
    ours = [line for line in code.splitlines() if re.search("mma.sync|ld.shared|cp.async.c", line)]
    used = {name for line in ours for name in re.findall(r"tensor<\d+x[14]x\S+, (#\w+)>", line)}
    held = r"sizePerThread = (\[.*?\]), threadsPerWarp = (\[.*?\]), warpsPerCTA = \[\d+, (\d+)\]"
    return sorted({" ".join(re.findall(held, layouts[name])[0]) for name in used})
