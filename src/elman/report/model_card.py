"""The model card of an exported model: how it was trained, and its numbers. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elman.base.version import __version__
from elman.config.run_config import RunConfig
from elman.evaluation.fields import described
from elman.evaluation.result import RunResult
from elman.report.markdown import code, table
from elman.report.tables.models import stack_words
from elman.sections.model import ModelConfig
from elman.sections.training import DataConfig

_SCORES = ("val_bpb", "val_tokens", "bpb", "loss")
_MEASURED = ("params", "state_bytes", "steps", "tokens", "flops")
_TRAINING = ("batch_size", "chunk_size", "grad_accum", "grad_clip", "tbptt")
_SEEDS = ("seed", "data_seed")


def model_card(
    config: RunConfig,
    result: RunResult | None,
    *,
    step: int,
    val_bpb: float | None,
    params: int,
) -> str:
    """Return ``README.md`` of an exported model; its license is left to the user.

    Args:
        config: The configuration of its run.
        result: The result of the run; None if it has not ended.
        step: Optimizer steps before these weights were saved.
        val_bpb: ``val_bpb`` of exactly these weights, if they were validated.
        params: Its parameters.
    """
    parts = [
        _head(config),
        f"A language model over {_tokens(config)}, trained by elman {_version(result)} and "
        f"exported by elman {__version__}: {_cells(config.model)}, width {config.model.dim:,}, "
        f"depth {config.model.depth}, {params:,} parameters, after {step:,} optimizer steps.",
        _USE.format("a byte of UTF-8" if _has_bytes(config) else "one of `tokenizer.json`"),
        "## Training data",
        _data(config, result),
        "## Training",
        _training(config, result),
        "## Scores",
        _scores(config, result, step, val_bpb),
        "## License",
        "The license of the weights is not stated here. Whoever publishes them names it at the top "
        "of this file.",
    ]
    return "\n\n".join(parts) + "\n"


_USE = """\
## Use

    pip install elman[export]

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("<this folder>", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("<this folder>", trust_remote_code=True)
text = model.generate(**tokenizer("def ", return_tensors="pt"))
print(tokenizer.decode(text[0]))
```

A token is {}. The byte 0x1e separates documents. The cache of `generate` is
the state of the layers. `elman.load("<this folder>")` gives the model without transformers."""


def _has_bytes(config: RunConfig) -> bool:
    return not isinstance(config.data, DataConfig) or config.data.has_bytes


def _tokens(config: RunConfig) -> str:
    return "bytes" if _has_bytes(config) else f"{config.model.vocab_size:,} subword tokens"


def _cells(model: ModelConfig) -> str:
    stack = f"cells {code(model.cells)} ({stack_words(model)})"
    return stack if model.mixed else f"cell {code(model.cell)}"


def _head(config: RunConfig) -> str:
    """Return the fields that the Hugging Face Hub reads, and the title."""
    lines = [
        "---",
        "# license: name it here, as in apache-2.0",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        f"tags: [elman, {', '.join(config.model.cells.split('+'))}]",
        "---",
        "",
        f"# {config.model.name}",
    ]
    return "\n".join(lines)


def _version(result: RunResult | None) -> str:
    return (result and result.environment.elman) or "of unknown version"


def _data(config: RunConfig, result: RunResult | None) -> str:
    """Return which bytes were read; of paths only the last names, which say nothing of a home."""
    if result is None or result.data.bytes is None:
        return "The run has no result yet, and nothing says which bytes it read."
    data = result.data
    names = [Path(path).name for path in data.paths]
    shown = ", ".join(code(name) for name in names[:10])
    rows = {
        "files": shown + (f" and {len(names) - 10:,} more" if len(names) > 10 else ""),
        "bytes": data.bytes,
        "bytes trained on": data.train_bytes,
        "bytes held out": data.val_bytes,
        "sha256": data.sha256 and code(data.sha256),
        "sha256 of a sample": data.sample_sha256 and code(data.sample_sha256),
        "state zeroed at documents": data.reset_at_documents,
    }
    if data.tokenizer is not None:
        name = Path(data.tokenizer["name"]).name
        rows["tokenizer"] = f"{name}, sha256 {code(data.tokenizer['sha256'])}"
    before = config.train.init_from
    note = before and (
        f"\n\nThe run began from the weights of another run, {code(Path(before).name)}. The data "
        "of that run are not listed here."
    )
    return _facts(rows) + (note or "")


def _training(config: RunConfig, result: RunResult | None) -> str:
    """Return optimizer, rates, seeds and budget."""
    optimizer = config.optim.model_dump(exclude_none=True)
    training = {key: getattr(config.train, key) for key in _TRAINING}
    seeds = {key: getattr(config.train, key) for key in _SEEDS}
    training |= {key: str(seed) for key, seed in seeds.items() if seed is not None}
    rows: dict[str, Any] = {f"optim.{key}": value for key, value in optimizer.items()}
    rows |= {f"train.{key}": value for key, value in training.items()}
    budget = {} if result is None else result.budget
    for kind, numbers in budget.items():
        rows[f"budget: {kind}"] = ", ".join(f"{key} {_text(n)}" for key, n in numbers.items())
    if result is not None:
        rows |= {
            "precision": result.precision,
            "backend": result.backend,
            "device": result.environment.device_name,
            "status of the run": result.status.value,
        }
    return _facts(rows)


def _scores(config: RunConfig, result: RunResult | None, step: int, val_bpb: float | None) -> str:
    """Return the numbers of these weights with their definitions."""
    of_end = result is not None and result.steps == step
    fields = dict(described(RunResult))
    units = {name: field.unit or "" for name, field in fields.items()}
    units["tokens"] = "bytes" if _has_bytes(config) else "tokens"
    numbers: dict[str, Any] = {}
    if of_end:
        numbers = {name: getattr(result, name) for name in (*_SCORES, *_MEASURED)}
    numbers |= {} if val_bpb is None else {"val_bpb": val_bpb}
    rows = [
        [code(name), _text(value), units[name], fields[name].text]
        for name, value in numbers.items()
        if value is not None
    ]
    if not rows:
        return "These weights were not validated."
    note = "" if of_end else "\n\nThe run went on after these weights, or has not ended."
    return table(["number", "value", "unit", "definition"], rows) + note


def _facts(rows: Mapping[str, Any]) -> str:
    said = [[name, _text(value)] for name, value in rows.items() if value is not None]
    return table(["what", "value"], said)


def _text(value: Any) -> str:
    """Return a value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
