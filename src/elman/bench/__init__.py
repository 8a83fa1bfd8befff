"""Timing of layers and training steps: whole, part by part, and kernels beside their floors."""

import os

# Keeps torch's profiler from printing a banner; torch reads this when it is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
