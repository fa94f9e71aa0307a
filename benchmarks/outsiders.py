"""Peers from outside: FlashAttention 3, FlashMLA, FlashInfer and vLLM, fetched, packed, and unpacked elsewhere.

    python -m benchmarks.outsiders fetch FOLDER            # download the wheels, take out what is needed
    python -m benchmarks.outsiders compile FOLDER          # FlashInfer's kernels: nvcc, Python 3.12, no GPU
    python -m benchmarks.outsiders fetch-vllm FOLDER       # vLLM as a whole engine: needs strip, no GPU
    python -m benchmarks.outsiders pack FOLDER ARCHIVES    # one archive a peer
    python -m benchmarks.outsiders unpack ARCHIVES FOLDER  # on the machine with the GPU
    python -m benchmarks.attention --outsiders FOLDER
    python -m benchmarks.latents --outsiders FOLDER
    python -m benchmarks.whole_engines --outsiders FOLDER
    python -m benchmarks.whole_prompts --outsiders FOLDER

The project depends on none of them, and the machine with the GPU may have no network: hence archives.

FlashAttention 3 is one library of vLLM's wheel, of 152 MB; FlashMLA is another, of 2 MB. With those kernels alone that
the benchmarks ask for (`benchmarks/fat_binaries.py`: Hopper, bfloat16, some sizes of heads) both pack to 3 MB. They call
torch's C++ interface, so the wheel has to be one that was built against the torch that runs: vLLM 0.20.2 for torch
2.11 and CUDA 13. FlashInfer's wheel is Python and sources, which it compiles at their first use. `compile` does that
ahead, for Hopper, bfloat16 and heads of 128 dims, the shapes of the benchmark. `benchmarks/outside_peers.py` and
`benchmarks/latent_peers.py` call them.

vLLM as a whole is the same wheel, 245 MB, and what its Python imports beside torch, transformers and numpy. Of its
kernels only those for Hopper are kept, of FlashAttention 3 those of bfloat16 and heads of 64 or 128 dims
(`benchmarks/fat_binaries.py`), and neither FlashAttention 2 nor FlashMLA and DeepGEMM, so the archive has some
25 MB. FlashInfer, which comes with vLLM, is not there either: experts go by Triton's kernels, those in mxfp4 too, for
Marlin's come as PTX for Hopper, and no PTX is kept. Packages that are large, and that decoding never calls, are not there: a name that is asked of one of them is
an empty class (`STAND_INS`). So this vLLM serves no HTTP and knows no grammars; the passes are its own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from benchmarks import sections
from benchmarks.fat_binaries import Kernels, pruned

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
# Packages that vLLM's Python imports beside torch, numpy, transformers and others that often come with these.
VLLM_NEEDS = (
    "annotated-types==0.8.0",
    "astor==0.8.1",
    "blake3==1.0.11",
    "cachetools==8.0.2",
    "cbor2==6.3.0",
    "compressed-tensors==0.15.0.1",
    "depyf==0.20.0",
    "dill==0.4.1",
    "diskcache==5.6.3",
    "distro==1.9.0",
    "gguf==0.19.0",
    "jiter==0.19.0",
    "lark==1.3.1",
    "loguru==0.7.3",
    "msgspec==0.22.0",
    "openai==2.54.0",
    "partial-json-parser==0.2.1.1.post7",
    "pybase64==1.5.1",
    "pydantic==2.14.4",
    "pydantic-core==2.50.5",
    "python-json-logger==4.2.0",
    "pyzmq==27.3.0",
    "setproctitle==1.3.8",
    "sniffio==1.3.1",
    "typing-inspection==0.4.5",
)
# Packages of which every name is an empty class: servers, grammars, tokenizers of Mistral's.
STAND_INS = (
    "fastapi",
    "ijson",
    "llguidance",
    "lmformatenforcer",
    "mistral_common",
    "openai_harmony",
    "outlines_core",
    "starlette",
    "uvicorn",
    "watchfiles",
    "xgrammar",
)
VLLM_PACKAGES = Path("vllm_engine")
# In it: numbers that its kernels for experts were tuned with, a file for each shape and GPU.
VLLM_TUNED = Path("vllm", "model_executor", "layers", "fused_moe", "configs")
FA3_LIBRARY = Path("flash_attention_3", "_vllm_fa3_C.abi3.so")
FLASHMLA_LIBRARY = Path("flashmla", "_flashmla_C.abi3.so")
FLASHINFER_PACKAGES = Path("flashinfer")
_FA3_IN_WHEEL = f"vllm/vllm_flash_attn/{FA3_LIBRARY.name}"
_OUT_OF_VLLM = {FA3_LIBRARY: _FA3_IN_WHEEL, FLASHMLA_LIBRARY: f"vllm/{FLASHMLA_LIBRARY.name}"}
_DATA = Path("flashinfer", "data")
_COMPILED = _DATA / "aot"
_NOT_CALLED = (  # of vLLM's wheel
    "vllm/benchmarks/",
    "vllm/third_party/deep_gemm/",
    "vllm/vllm_flash_attn/cute/",
    "vllm/vllm_flash_attn/_vllm_fa2_C",
    "vllm/_flashmla",
)
_HOPPER = 90
_FOR = ("--python-version", "3.12", "--only-binary", ":all:")
_PLATFORMS = ("manylinux_2_35", "manylinux_2_28", "manylinux_2_24", "manylinux2014")
HEAD_DIM = 128
_VLLM_HEAD_DIMS = (64, HEAD_DIM)  # of the networks that vLLM is timed with
# As FlashAttention 3 names them: of `benchmarks/attention.py`; of latents; of their expanded forms.
_OP_HEAD_DIMS = (f"{HEAD_DIM}", "64_512", "192_128", "256")
_OF_FA3 = re.compile(rb"\d_flash_fwd_hdim(\w+?)_sm90_cu")


def _download(wheels: Path) -> list[str]:
    """The command that downloads wheels of packages that stand behind it."""
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(wheels)]
    return [*pip, *_FOR, *platforms]


def fetch(folder: Path) -> None:
    """Download the wheels with pip, and unpack what is needed of them."""
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([*_download(Path(wheels)), VLLM, *FLASHINFER], check=True)
        for wheel in sorted(Path(wheels).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                if wheel.name.startswith("vllm-"):
                    _take_libraries(archive, folder)
                else:
                    archive.extractall(folder / FLASHINFER_PACKAGES)


def _take_libraries(wheel: zipfile.ZipFile, folder: Path) -> None:
    """FlashAttention 3 and FlashMLA out of vLLM's wheel, with the kernels that are asked for."""
    for library, name in _OUT_OF_VLLM.items():
        target = folder / library
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(pruned(wheel.read(name), is_asked))


def fetch_vllm(folder: Path) -> None:
    """Download vLLM and what it imports, and unpack what a decoding engine on Hopper needs of it."""
    target = folder / VLLM_PACKAGES
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([*_download(Path(wheels)), VLLM, *VLLM_NEEDS], check=True)
        for wheel in sorted(Path(wheels).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if not name.startswith(_NOT_CALLED)]
                archive.extractall(target, names)
    libraries = [*(target / "vllm").glob("_*.so"), target / _FA3_IN_WHEEL]
    for library in libraries:
        library.write_bytes(pruned(library.read_bytes(), is_called))
        subprocess.run(["strip", str(library)], check=True)
    stand_ins = Path(__file__).with_name("stand_ins.py").read_text(encoding="utf-8")
    words = f"{stand_ins}\n\nstand_in({STAND_INS!r})\n"
    (target / "sitecustomize.py").write_text(words, encoding="utf-8")  # Python imports it by itself


def is_asked(kernels: Kernels) -> bool:
    """Whether a benchmark of the op may ask FlashAttention 3 or FlashMLA for these kernels."""
    if not (kernels.is_machine_code and kernels.arch == _HOPPER):
        return False
    source = _OF_FA3.search(kernels.code)
    if source is None:
        return True
    kinds = tuple(b"%s_bf16" % dims.encode() for dims in _OP_HEAD_DIMS)
    return source[1].startswith(kinds) and b"softcap" not in source[1]


def is_called(kernels: Kernels) -> bool:
    """Whether a GPU of the kind that is measured may run these kernels of vLLM's, with the shapes that are."""
    if not (kernels.is_machine_code and kernels.arch == _HOPPER):
        return False
    source = _OF_FA3.search(kernels.code)
    if source is not None:
        return source[1].startswith(tuple(b"%d_bf16" % dims for dims in _VLLM_HEAD_DIMS))
    dims = set(re.findall(rb"EEEEEELi(\d+)ENS_\w*?bfloat16_tE?f?NS_4arch", kernels.code))
    others = re.search(rb"EEEEEELi\d+ENS_(?:6half_t|\d+float_e4m3_t)E?f?NS_4arch", kernels.code)
    return others is None and dims <= {b"%d" % each for each in _VLLM_HEAD_DIMS}


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
    """An archive for each peer that is there, and how large it is."""
    archives.mkdir(parents=True, exist_ok=True)

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if Path(member.name).name == "__pycache__" else member

    libraries = FA3_LIBRARY.parent, FLASHMLA_LIBRARY.parent
    for part in (*libraries, FLASHINFER_PACKAGES, VLLM_PACKAGES):
        if not (folder / part).exists():
            continue
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
    """One of the five steps."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = options.add_subparsers(dest="step", required=True)
    for name, folders in (
        ("fetch", ["folder"]),
        ("compile", ["folder"]),
        ("fetch-vllm", ["folder"]),
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
    elif given.step == "fetch-vllm":
        fetch_vllm(given.folder)
    elif given.step == "pack":
        pack(given.folder, given.archives)
    else:
        unpack(given.archives, given.folder)


if __name__ == "__main__":
    main()
