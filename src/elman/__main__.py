"""``python -m elman``: the same as the command ``elman``."""

from __future__ import annotations

import sys

from elman.cli.start import main

sys.exit(main())
