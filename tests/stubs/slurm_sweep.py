"""The command line with an eye on SLURM's queue that suits one node."""

import sys

from elman.cli.main import main
from elman.launchers import slurm

if __name__ == "__main__":
    slurm.POLL_SECONDS = 0.5
    sys.exit(main())
