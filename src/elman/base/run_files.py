"""The names of all files in the folder of a run, of a checkpoint and of a sweep.

They stand here, below every room that writes or reads such a folder: also ``data``, which must
know one, since nothing in it is text to train on.
"""

from __future__ import annotations

from pathlib import Path

# The folder of a run.
CONFIG = "config.yaml"
"""The resolved configuration, from which ``train.resume`` goes on."""
RESULT = "result.json"
"""How the run ended, and its numbers (:mod:`elman.evaluation.metrics` defines them)."""
METRICS = "metrics.jsonl"
"""Every step, window and validation, one record a line."""
LOG = "train.log"
LOSS_CURVE = "loss.png"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
WANDB = "wandb.json"
"""The id of the run at Weights & Biases."""
TRACKIO = "trackio.json"
"""The name of the run at Trackio."""
PROFILE = "profile.json"
"""The trace of ``train.profile``."""
LOCK = ".lock"
LOCK_HOLDER = ".lock.holder"
"""Stands for the lock where the file system has none."""
HYDRA = ".hydra"
"""What Hydra composed; a resumption adds ``resume-<n>`` to it."""

# The folder of another mode's job has these in place of a result.
PARITY = "parity.json"
BENCH = "bench.json"
PROBE = "probe.json"

# A checkpoint: a folder ``step-<n>`` below CHECKPOINTS, with a copy of CONFIG.
STEP = "step-"
"""How the name of a checkpoint begins."""
BEST = "best"
"""The link to the checkpoint with the smallest validation loss."""
WEIGHTS = "model.safetensors"
STATE = "state.pt"
META = "meta.json"

# The folder that mode=export makes, with WEIGHTS; Hugging Face's libraries look for these names.
CARD = "README.md"
EXPORT_CONFIG = "config.json"
GENERATION = "generation_config.json"
MODELING = "modeling_elman.py"
"""The Python code with which transformers computes the model."""
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WEIGHTS_INDEX = "model.safetensors.index.json"
"""Which file has which weight, where transformers has divided them into several."""

# The folder of a sweep, in which each job's folder lies.
SWEEP = "sweep.json"
"""The request, and each job's command, folder and status."""
SWEEP_JOBS = "jobs.jsonl"
"""Each job's configuration as it was composed."""
TUNE_JOURNAL = "tune.journal"
"""Optuna's journal of a tuned sweep: one study for each arm."""
AUDIT = "audit.json"
"""What a report found to be held equal, and what not."""
COMPONENTS = "components.json"
"""What each component of a suite gains."""
LADDER = "ladder.json"
"""The laws of a ladder's families, the predictions, and who crosses whom."""
SUBMITTED = ".submitit"
"""What the launchers write for their jobs."""

OUTPUT_MARKS = ({HYDRA}, {SWEEP}, {LOCK, LOG}, {CONFIG, METRICS}, {CONFIG, CHECKPOINTS})
"""A folder with all names of one of these sets is that of a run or sweep."""


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, the oldest first."""
    return sorted((folder / CHECKPOINTS).glob(f"{STEP}*"))


def earlier_results(folder: Path) -> list[Path]:
    """Return the results of a run's earlier sessions, ``result-<n>.json``, the oldest first."""
    stem, _, kind = RESULT.partition(".")
    return sorted(folder.glob(f"{stem}-*.{kind}"))


def next_earlier_result(folder: Path) -> Path:
    """Return the path to which the newest result moves when a later session writes its own."""
    number = 1 + len(earlier_results(folder))
    return (folder / RESULT).with_stem(f"{Path(RESULT).stem}-{number:03d}")
