"""What the cells of PyTorch's own recurrent networks share: options, and words for results."""

from __future__ import annotations

from collections.abc import Mapping

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.declaration import Option, Value

OPTIONS = {
    **skeleton_options(convolution=False, normal=None),
    "network_dtype": Option(
        "fp16",
        "what cuDNN computes in on a GPU where training computes in bf16 and kernels.backend is "
        "torch; fp16 has its persistent kernels, with gradients scaled into its range",
        choices=("fp16", "bf16"),
    ),
}


def path(options: Mapping[str, Value], device_type: str, precision: str) -> str | None:
    """Return in words what computes the network.

    Args:
        options: The cell's options.
        device_type: ``cpu``, ``cuda``, and so on.
        precision: ``bf16`` or ``fp32``, as training computes.
    """
    if device_type != "cuda":
        return None
    return f"cuDNN, {options['network_dtype'] if precision == 'bf16' else precision}"
