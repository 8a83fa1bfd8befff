"""From a composed configuration to running jobs: run folders, sweeps and launchers. No torch."""
