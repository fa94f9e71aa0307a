"""FlashAttention 3 and FlashInfer for the benchmark of the op: fetched, packed, and unpacked elsewhere.

    python -m benchmarks.outsiders fetch FOLDER            # download the wheels, take out what is needed
    python -m benchmarks.outsiders compile FOLDER          # FlashInfer's kernels: nvcc, Python 3.12, no GPU
    python -m benchmarks.outsiders pack FOLDER ARCHIVES    # one archive a peer
    python -m benchmarks.outsiders unpack ARCHIVES FOLDER  # on the machine with the GPU
    python -m benchmarks.attention --outsiders FOLDER

The project depends on neither, and the machine with the GPU may have no network: hence archives.

FlashAttention 3 is one library of vLLM's wheel, 152 MB, which xz packs to 10 MB. It calls torch's C++
interface, so the wheel has to be one that was built against the torch that runs: vLLM 0.20.2 for torch 2.11 and
CUDA 13. FlashInfer's wheel is Python and sources, which it compiles at their first use. `compile` does that ahead, for
Hopper, bfloat16 and heads of 128 dims, the shapes of the benchmark; `benchmarks/outside_peers.py` calls both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from benchmarks import sections

VLLM = "vllm==0.20.2"
# FlashInfer, and what its Python imports beside torch, numpy and what comes with transformers.
FLASHINFER = (
    "flashinfer-python==0.6.12",
    "apache-tvm-ffi==0.1.11",
    "einops==0.8.2",
    "tabulate==0.10.0",
    "click==8.5.1",
    "nvidia-ml-py==13.615.71",
    "requests==2.34.2",
    "urllib3==2.8.0",
    "idna==3.20",
    "certifi==2026.10.19.post1",
    "charset-normalizer==3.5.2",
)
FA3_LIBRARY = Path("flash_attention_3", "_vllm_fa3_C.abi3.so")
FLASHINFER_PACKAGES = Path("flashinfer")
_FA3_IN_WHEEL = f"vllm/vllm_flash_attn/{FA3_LIBRARY.name}"
_DATA = Path("flashinfer", "data")
_COMPILED = _DATA / "aot"
_FOR = ("--python-version", "3.12", "--only-binary", ":all:")
_PLATFORMS = ("manylinux_2_35", "manylinux_2_28", "manylinux_2_24", "manylinux2014")
HEAD_DIM = 128


def fetch(folder: Path) -> None:
    """Download the wheels with pip, and unpack what is needed of them."""
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", wheels]
        subprocess.run([*pip, *_FOR, *platforms, VLLM, *FLASHINFER], check=True)
        for wheel in sorted(Path(wheels).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                if wheel.name.startswith("vllm-"):
                    target = folder / FA3_LIBRARY
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(_FA3_IN_WHEEL) as source, target.open("wb") as copy:
                        shutil.copyfileobj(source, copy)
                else:
                    archive.extractall(folder / FLASHINFER_PACKAGES)


def compile_kernels(folder: Path) -> None:
    """Compile FlashInfer's kernels into its package, where it looks before it compiles anything itself."""
    packages = folder / FLASHINFER_PACKAGES
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": cache}
        sys.path.insert(0, str(packages))
        import torch
        from flashinfer.jit.attention import modules
        from flashinfer.jit.core import build_jit_specs

        bf16, dims, no_positions = torch.bfloat16, (HEAD_DIM, HEAD_DIM), 0
        types = (bf16, bf16, bf16, torch.int32)
        batch = [
            modules.gen_batch_prefill_module(kind, *types, *dims, no_positions, False, False, False)
            for kind in ("fa2", "fa3")
        ]
        whole = modules.gen_batch_attention_module(*types, *dims, no_positions, False, False)
        specs = [*batch, whole]
        # cutlass wants a header that comes with torch; linking wants a driver, here perhaps an empty one.
        headers = Path(torch.__file__).parents[1] / "nvidia" / "cu13" / "include"
        os.environ["NVCC_APPEND_FLAGS"] = f"-isystem {headers}"
        empty = Path(cache, "libcuda.so")
        name = "-Wl,-soname,libcuda.so.1"  # the real library is loaded by this name
        compiler = ["cc", "-shared", name, "-x", "c", "/dev/null", "-o", str(empty)]
        subprocess.run(compiler, check=True)
        os.environ["LIBRARY_PATH"] = f"{os.environ.get('LIBRARY_PATH', '')}:{cache}"
        build_jit_specs(specs, verbose=True)
        for spec in specs:
            target = packages / _COMPILED / spec.name
            if not target.exists():
                target.mkdir(parents=True)
                shutil.copy2(spec.jit_library_path, target)


def pack(folder: Path, archives: Path) -> None:
    """An archive for each peer, and how large it is."""
    archives.mkdir(parents=True, exist_ok=True)

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if Path(member.name).name == "__pycache__" else member

    for part in (FA3_LIBRARY.parent, FLASHINFER_PACKAGES):
        path = archives / f"{part}.tar.xz"
        with tarfile.open(path, "w:xz", preset=6) as archive:
            archive.add(folder / part, str(part), filter=kept)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


def unpack(archives: Path, folder: Path) -> None:
    """Unpack what `pack` wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(archives.glob("*.tar.xz"))
    if not found:
        raise SystemExit(
            f"{archives} has no archive (*.tar.xz). `python -m benchmarks.outsiders pack` writes them."
        )
    for path in found:
        with tarfile.open(path) as archive:
            sections.unpack(archive, folder)


def main(words: list[str] | None = None) -> None:
    """One of the four steps."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = options.add_subparsers(dest="step", required=True)
    for name, folders in (
        ("fetch", ["folder"]),
        ("compile", ["folder"]),
        ("pack", ["folder", "archives"]),
        ("unpack", ["archives", "folder"]),
    ):
        step = steps.add_parser(name)
        for each in folders:
            step.add_argument(each, type=Path)
    given = options.parse_args(words)
    if given.step == "fetch":
        fetch(given.folder)
    elif given.step == "compile":
        compile_kernels(given.folder)
    elif given.step == "pack":
        pack(given.folder, given.archives)
    else:
        unpack(given.archives, given.folder)


if __name__ == "__main__":
    main()
