"""Launcher ``gpus``: one job per GPU of this machine, never two. No torch in the launcher."""
