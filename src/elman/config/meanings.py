"""Guesses which key a user meant: by a mistyped key's meaning, its place, or its letters.

Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from elman.base.errors import nearest

# Names from other programs and papers, with the keys that mean the same here.
_SAME = {
    "accumulate": ("train.grad_accum",),
    "accumulation_steps": ("train.grad_accum",),
    "gradient_accumulation_steps": ("train.grad_accum",),
    "batch": ("train.batch_size",),
    "bs": ("train.batch_size",),
    "block_size": ("train.chunk_size",),
    "bptt": ("train.tbptt",),
    "checkpoint_every": ("train.save_every",),
    "clip": ("train.grad_clip",),
    "clip_grad": ("train.grad_clip",),
    "clip_norm": ("train.grad_clip",),
    "context": ("train.chunk_size",),
    "context_length": ("train.chunk_size",),
    "ctx": ("train.chunk_size",),
    "corpus": ("data.path",),
    "data_dir": ("data.path",),
    "data_path": ("data.path",),
    "devices": ("launcher.gpus_per_job",),
    "d_model": ("model.dim",),
    "gpus_per_node": ("launcher.gpus_per_job",),
    "init": ("train.init_from",),
    "load": ("train.init_from",),
    "max_seq_len": ("train.chunk_size",),
    "n_gpus": ("launcher.gpus_per_job",),
    "n_steps": ("train.steps",),
    "nproc": ("launcher.gpus_per_job",),
    "nproc_per_node": ("launcher.gpus_per_job",),
    "num_gpus": ("launcher.gpus_per_job",),
    "pretrained": ("train.init_from",),
    "project": ("log.wandb_project",),
    "random_seed": ("train.seed",),
    "save_interval": ("train.save_every",),
    "save_steps": ("train.save_every",),
    "world_size": ("launcher.gpus_per_job",),
    "d_state": ("model.n_state",),
    "dataset": ("data.path",),
    "embed_dim": ("model.dim",),
    "eval_every": ("train.val_every",),
    "eval_interval": ("train.val_every",),
    "eval_path": ("data.val_path",),
    "expand": ("model.expansion",),
    "file": ("data.path", "eval.path"),
    "gpu": ("launcher.gpus",),
    "gpus": ("launcher.gpus_per_job",),
    "gradient_clip": ("train.grad_clip",),
    "heads": ("model.n_heads",),
    "hidden": ("model.dim",),
    "hidden_dim": ("model.dim",),
    "hidden_size": ("model.dim",),
    "iterations": ("train.steps",),
    "iters": ("train.steps",),
    "layers": ("model.depth",),
    "learning_rate": ("optim.lr",),
    "length": ("generate.max_bytes", "train.chunk_size"),
    "log_interval": ("log.every",),
    "max_flops": ("train.flops",),
    "max_iters": ("train.steps",),
    "max_length": ("generate.max_bytes",),
    "max_new_tokens": ("generate.max_bytes",),
    "max_steps": ("train.steps",),
    "max_tokens": ("generate.max_bytes", "train.bytes"),
    "n_embd": ("model.dim",),
    "n_head": ("model.n_heads",),
    "n_layer": ("model.depth",),
    "n_layers": ("model.depth",),
    "num_heads": ("model.n_heads",),
    "num_layers": ("model.depth",),
    "num_steps": ("train.steps",),
    "sequence_length": ("train.chunk_size",),
    "seq_len": ("train.chunk_size",),
    "state_size": ("model.n_state",),
    "temp": ("generate.temperature",),
    "text": ("generate.prompt",),
    "tokens": ("generate.max_bytes", "train.bytes"),
    "val_data": ("data.val_path",),
    "val_file": ("data.val_path",),
    "valid_path": ("data.val_path",),
    "validation_file": ("data.val_path",),
    "validation_path": ("data.val_path",),
    "warmup": ("optim.warmup_steps", "optim.warmup_share"),
    "wd": ("optim.weight_decay",),
    "width": ("model.dim",),
    "workers": ("launcher.workers",),
}
# Keys for the same quantity in another unit: the typed value would be wrong there.
_ANOTHER_UNIT = {
    "epochs": "train.minutes",
    "hours": "train.minutes",
    "seconds": "train.minutes",
    "time": "train.minutes",
    "max_epochs": "train.minutes",
    "num_epochs": "train.minutes",
    "amp": "train.precision",
    "bf16": "train.precision",
    "dtype": "train.precision",
    "fp16": "train.precision",
    "mixed_precision": "train.precision",
}
# Where a run writes is a setting of Hydra's.
_RUN_FOLDER = {
    *("exp_name", "experiment", "log_dir", "logdir", "name", "out_dir", "outdir", "output"),
    *("output_dir", "run_dir", "run_name", "save_dir"),
}
GROUPS_ELSEWHERE = {
    "arch": "model",
    "architecture": "model",
    "cell": "model",
    "level": "model",
    "model_name": "model",
    "model_type": "model",
    "network": "model",
    "optimiser": "optim",
    "optimizer": "optim",
    "suite": "benchmark",
    "task": "data",
}
"""Names of groups in other programs."""
MODES_ELSEWHERE = {
    "check": "parity",
    "chat": "generate",
    "compare": "report",
    "complete": "generate",
    "diagnose": "doctor",
    "env": "doctor",
    "evaluate": "eval",
    "evaluation": "eval",
    "fit": "train",
    "generation": "generate",
    "infer": "generate",
    "inference": "generate",
    "info": "doctor",
    "plot": "report",
    "predict": "generate",
    "pretrain": "train",
    "profile": "bench",
    "results": "report",
    "sample": "generate",
    "score": "eval",
    "size": "solve",
    "speed": "bench",
    "summary": "report",
    "test": "eval",
    "training": "train",
    "val": "eval",
    "validate": "eval",
    "verify": "parity",
}
"""Names of modes in other programs."""
# Names of models elsewhere that are spelled less like the one here than like another one.
_MODELS = {
    "attention": "llama",
    "deltanet": "fla-gdn",
    "gateddeltanet": "fla-gdn",
    "gdn": "fla-gdn",
    "gpt": "llama",
    "gpt2": "llama",
    "transformer": "llama",
    "xlstm": "slstm",
}
# Below these shares of equal letters a likeness is chance; measured on names alone.
_LIKE, _SECTION_LIKE = 0.7, 0.6


def meant_key(key: str, keys: Sequence[str]) -> tuple[str, bool] | None:
    """Return the key that was meant, and whether the typed value fits it; None if unknown.

    Args:
        key: Dotted key as typed, or a name alone.
        keys: Every dotted key that exists.
    """
    section, _, name = key.rpartition(".")
    if not section and name.lower() in _RUN_FOLDER:
        return "hydra.run.dir", True
    same = [known for known in _SAME.get(name.lower(), ()) if known in keys]
    of_section = [known for known in keys if known.rpartition(".")[0] == section]
    named = [known for known in keys if known.rpartition(".")[2] == name]
    for found in (
        [known for known in same if known in of_section],
        named,
        same,
        _alike(name, of_section),
        _in_a_section_alike(section, name, keys),
    ):
        if found:
            return found[0], True
    other = _ANOTHER_UNIT.get(name.lower())
    return (other, False) if other is not None and other in keys else None


def fitting(key: str, value: str) -> str:
    """Return the key that a value fits: ``gpus=2`` counts GPUs, ``gpus=[0,1]`` names them."""
    counts = key == "launcher.gpus" and value.isdigit() and int(value) > 1
    return "launcher.gpus_per_job" if counts else key


def names_a_key(name: str, keys: Sequence[str]) -> bool:
    """Return whether ``name``, typed without its section, is a key's name, here or elsewhere."""
    own = any(known.rpartition(".")[2] == name for known in keys)
    return own or name.lower() in {*_SAME, *_ANOTHER_UNIT, *_RUN_FOLDER}


def same_elsewhere(name: str, section: str) -> list[str]:
    """Return what ``name`` of other programs and papers is called in ``section``."""
    parts = [known.partition(".") for known in _SAME.get(name.lower(), ())]
    return [key for of, _, key in parts if of == section]


def model_meant(name: str) -> str | None:
    """Return the model that has another name elsewhere, or None."""
    return _MODELS.get(re.sub("[-_]", "", name.lower()))


def _alike(name: str, keys: Sequence[str]) -> list[str]:
    """Return the key whose name is spelled most like ``name``."""
    by_name = {known.rpartition(".")[2]: known for known in keys}
    best = nearest(name, by_name, _LIKE)
    return [by_name[best]] if best else []


def _in_a_section_alike(section: str, name: str, keys: Sequence[str]) -> list[str]:
    """Return the meant key if only the section's name is mistyped."""
    sections = dict.fromkeys(known.rpartition(".")[0] for known in keys if "." in known)
    best = nearest(section, sections, _SECTION_LIKE) if section else None
    if best is None or best == section:
        return []
    inside = [known for known in keys if known.rpartition(".")[0] == best]
    exact = [known for known in inside if known.rpartition(".")[2] == name]
    return exact or _alike(name, inside)
