"""Timing of layers and training steps: whole, part by part, and kernels beside their floors."""

import os

# torch's profiler announces itself on the error stream; it reads this when torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
