"""GPUs as torch sees them, the driver below, and the kernels that Qwen3.5 runs fast with."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

from train.checks import Finding

_DRIVER = Path("/proc/driver/nvidia/version")
BF16_SINCE = (8, 0)  # Ampere: NVIDIA, CUDA C++ Programming Guide, tensor core input types by compute capability


def check_gpus() -> list[Finding]:
    """Imports torch, which takes seconds."""
    try:
        import torch
    except ImportError as error:
        return [Finding("problem", "GPU", f"torch cannot be imported ({error})", "pip install torch")]
    driver, built = driver_cuda(), torch.version.cuda
    if torch.cuda.is_available():
        told = f"torch built for CUDA {built}, driver up to CUDA {driver or 'unknown'}"
        return [Finding("ok", "CUDA", told), *(_gpu(number) for number in range(torch.cuda.device_count()))]
    if driver is None and not _DRIVER.exists():
        do = "runs here: make demo, recipes/smollm2_*.yaml, every --dry-run; the qwen2b recipes want a GPU"
        return [Finding("ok", "GPU", "none on this machine: training runs on the CPU", do)]
    if built is None:
        found = f"an NVIDIA driver (CUDA {driver or 'unknown'}) is here, but torch {torch.__version__} is built without CUDA"
        do = f"pip install --force-reinstall 'torch=={torch.__version__.partition('+')[0]}'"
        return [Finding("problem", "GPU", found, do)]
    if driver is not None and _numbers(driver) < _numbers(built):
        found = f"the driver supports CUDA up to {driver}, torch is built for {built}"
        return [
            Finding("problem", "GPU", found, f"update the NVIDIA driver to one for CUDA {built} or newer (nvidia-smi)")
        ]
    found = f"a driver for CUDA {driver or 'unknown'} is here, but torch (CUDA {built}) finds no GPU"
    return [Finding("problem", "GPU", found, "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES")]


def check_kernels(has_gpu: bool) -> list[Finding]:
    fla, conv = (importlib.util.find_spec(name) is not None for name in ("fla", "causal_conv1d"))
    if fla and not has_gpu:
        found = "flash-linear-attention is installed on a machine without a GPU, where it crashes every Qwen3.5 model"
        return [Finding("problem", "kernels", found, "pip uninstall -y flash-linear-attention fla-core")]
    if not has_gpu:
        return [Finding("ok", "kernels", "linear attention runs in plain torch, right and slow; kernels need a GPU")]
    findings = []
    if fla:
        do = "bash recipes/gpu_check.sh compares its gradients with plain torch, once on each new kind of GPU"
        findings.append(Finding("ok", "kernels", "flash-linear-attention is there", do))
    else:
        found = "no flash-linear-attention: Qwen3.5's linear attention runs in plain torch, several times slower"
        findings.append(Finding("note", "kernels", found, "pip install 'flash-linear-attention>=0.6'"))
    if not conv:
        found = "no causal-conv1d: its convolution runs in plain torch, and packing is refused"
        do = "pip install --no-build-isolation causal-conv1d    (compiles; needs nvcc)"
        findings.append(Finding("note", "kernels", found, do))
    return findings


def driver_cuda() -> str | None:
    """The newest CUDA that the installed driver supports, such as "13.0"; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _gpu(number: int) -> Finding:
    import torch

    seen = torch.cuda.get_device_properties(number)
    capability = (seen.major, seen.minor)
    about = f"{seen.name}, {seen.total_memory / 2**30:.0f} GiB, compute capability {seen.major}.{seen.minor}"
    if capability >= BF16_SINCE:
        return Finding("ok", f"GPU {number}", f"{about}, bf16")
    do = "--model.dtype float32 --train.bf16 false --train.fp16 true"
    return Finding("note", f"GPU {number}", f"{about}, no bf16, which the recipes compute in", do)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
