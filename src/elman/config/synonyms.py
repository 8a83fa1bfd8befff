"""Names in other programs and papers, by what stands for them here: one line for each."""

from __future__ import annotations

from collections.abc import Mapping


def _by_word(table: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return what each word of a table stands for, in the table's order."""
    words = dict.fromkeys(word for names in table.values() for word in names.split())
    return {
        word: tuple(ours for ours, names in table.items() if word in names.split())
        for word in words
    }


KEYS = _by_word(
    {
        "model.dim": "d_model embed_dim hidden hidden_dim hidden_size n_embd width",
        "model.depth": "n_layer n_layers num_layers",
        "model.n_heads": "heads n_head num_heads",
        "model.n_state": "d_state state_size",
        "model.expansion": "expand",
        "data.path": "corpus data_dir data_path dataset file",
        "data.val_path": "eval_path val_data val_file valid_path validation_file validation_path",
        "eval.path": "file",
        "generate.prompt": "text",
        "generate.max_bytes": "length max_length max_new_tokens max_tokens tokens",
        "generate.temperature": "temp",
        "optim.lr": "learning_rate",
        "optim.warmup_steps": "warmup",
        "optim.warmup_share": "warmup",
        "optim.weight_decay": "wd",
        "train.batch_size": "batch bs",
        "train.bytes": "max_tokens tokens",
        "train.chunk_size": (
            "block_size context context_length ctx length max_seq_len seq_len sequence_length"
        ),
        "train.flops": "max_flops",
        "train.grad_accum": "accumulate accumulation_steps gradient_accumulation_steps",
        "train.grad_clip": "clip clip_grad clip_norm gradient_clip",
        "train.init_from": "init load pretrained",
        "train.save_every": "checkpoint_every save_interval save_steps",
        "train.seed": "random_seed",
        "train.steps": "iterations iters max_iters max_steps n_steps num_steps",
        "train.tbptt": "bptt",
        "train.val_every": "eval_every eval_interval",
        "log.every": "log_interval",
        "log.wandb_project": "project",
        "launcher.gpus": "gpu",
        "launcher.gpus_per_job": (
            "devices gpus gpus_per_node n_gpus nproc nproc_per_node num_gpus world_size"
        ),
        "launcher.workers": "workers",
    }
)
KEYS_OF_ANOTHER_UNIT = _by_word(
    {
        "train.minutes": "epochs hours max_epochs num_epochs seconds time",
        "train.precision": "amp bf16 dtype fp16 mixed_precision",
    }
)
"""Keys for the same quantity: the typed value would be wrong there."""
RUN_FOLDER = _by_word(
    {
        "hydra.run.dir": (
            "exp_name experiment log_dir logdir name out_dir outdir output output_dir run_dir "
            "run_name save_dir"
        )
    }
)
"""Keys without a section for where a run writes, which is a setting of Hydra's."""
GROUPS = _by_word(
    {
        "model": "arch architecture cell level model_name model_type network",
        "optim": "optimiser optimizer",
        "benchmark": "suite",
        "data": "task",
    }
)
CHOICES = {
    "mode": _by_word(
        {
            "train": "fit pretrain training",
            "eval": "evaluate evaluation score test val validate",
            "generate": "chat complete generation infer inference predict sample",
            "export": "convert hf huggingface publish upload",
            "solve": "size",
            "bench": "profile speed",
            "parity": "check verify",
            "probe": "introspect memory state",
            "report": "compare plot results summary",
            "verdict": "better decide significance winner",
            "doctor": "diagnose env info",
        }
    ),
    "model": _by_word(
        {
            "llama": "attention gpt gpt2 transformer",
            "fla-gdn": "deltanet gateddeltanet gdn",
            "slstm": "xlstm",
        }
    ),
}
"""Choices of groups, by words in small letters; those of models without - and _."""
VALUES = {"gpu": "cuda", "width": "dim", "layers": "depth"}
"""Words for a setting's value that are spelled more like another value."""
_OWN_FILES = "your own files are read by --config-dir DIR, as in DIR/model/mine.yaml"
COMMANDS = {
    "help": "type elman --help",
    "version": "type elman --version",
    "list": "type elman mode=models",
    "ls": "type elman mode=models",
    "list_models": "type elman mode=models",
    "sweep": "type elman -m model=e1,e42",
    "multirun": "type elman -m model=e1,e42",
    "resume": "type elman train.resume=<run folder>",
    "config": "type elman --cfg job",
    "print_config": "type elman --cfg job",
    "run": "drop it: elman trains",
    "start": "drop it: elman trains",
    "launch": "drop it: elman trains",
    ".yaml": _OWN_FILES,
    ".yml": _OWN_FILES,
}
"""What to do in place of a whole command's name, or of a file with that ending."""
FLAGS = {
    "cpu": "train.device=cpu",
    "gpu": "train.device=cuda",
    "cuda": "train.device=cuda",
    "v": "--version",
    "V": "--version",
    "list_models": "mode=models",
    "list": "mode=models",
    "sweep": "-m",
}
FLAGS_WITHOUT_NEED = {
    "json": "every run writes result.json, and elman mode=report writes report.csv",
    "csv": "elman mode=report writes report.csv",
    "config": _OWN_FILES,
    "quiet": "elman ... > log keeps what a run says out of the terminal",
    "verbose": "a run's folder has everything that it says in train.log",
    "debug": "a run's folder has everything that it says in train.log",
}
"""Flags for which nothing needs to be typed, with the reason."""
