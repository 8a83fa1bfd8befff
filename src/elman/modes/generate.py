"""``mode=generate``: a checkpoint continues a prompt, byte by byte."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path

from elman.config import RunConfig
from elman.errors import ExitStatus
from elman.models.generation import generate
from elman.training.environment import choose_device
from elman.training.loading import load, slow_path_note


def run(config: RunConfig, folder: Path | None) -> ExitStatus:
    """Print the prompt and its continuation to standard output as it is drawn.

    Raises:
        UserError: there is no such checkpoint or device.
    """
    assert config.generate is not None
    assert folder is None
    settings = config.generate
    device = choose_device(settings.device, "generate.device")
    backend, allow_slow = config.kernels.backend, config.baseline.allow_slow
    model = load(settings.checkpoint, device=device, backend=backend, allow_slow=allow_slow)
    if note := slow_path_note(settings.checkpoint, device, backend, allow_slow):
        print(f"elman: {note}", file=sys.stderr, flush=True)  # the text alone is the output
    prompt = settings.prompt.encode()
    sys.stdout.write(settings.prompt)
    # Bytes arrive one by one, characters of several bytes only when they are whole.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for byte in generate(
        model,
        prompt,
        settings.max_bytes,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
    ):
        sys.stdout.write(decoder.decode(bytes([byte])))
        sys.stdout.flush()
    sys.stdout.write(decoder.decode(b"", final=True) + "\n")
    return ExitStatus.OK
