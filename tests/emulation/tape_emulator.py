"""The tape engine's CUDA kernels, run on a CPU from their own sources."""

from __future__ import annotations

from elman.ops.tape.cuda import stepwise
from tests.emulation.dense_emulator import starter_of
from tests.emulation.stretches import of_tape_step

starter = starter_of(stepwise.unit_text, of_tape_step)
