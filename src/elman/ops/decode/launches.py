"""Launches of the decoding kernels on PyTorch's current stream."""

from __future__ import annotations

from elman.ops.common.cuda_kernels import CudaKernels, Launching

COMPILED: CudaKernels[str] = CudaKernels(str, "decoding")
"""By the text of their translation unit."""
LAUNCH: Launching[str] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
