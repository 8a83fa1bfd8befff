"""What the configurations say: data and their order, precision, and what a model is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elman.models.cells import registry
from elman.report.comparison.audit.compare import listed, same_number, same_text
from elman.report.comparison.audit.finding import (
    Finding,
    Subject,
    declared,
    equal,
    named,
    unequal,
    unknown,
)
from elman.report.comparison.conditions import (
    NOT_RECORDED,
    by_cell,
    conditions,
    model_parts,
    only_warmed_up,
    settings,
)
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import Run
from elman.sections.model import DIM_ALIGNMENT
from elman.sections.training import BYTES

MLP_NEAR = 0.1
"""Widths of MLPs over the model's that differ by less count as equal: they are multiples of 128."""
_LLAMA_ROUNDS = 256
_TOKEN_SHIFT = {"rwkv7": "a token shift"}
_NEGATIVE = "allow_neg_eigval"


def _condition(run: Run, *names: str) -> str | None:
    known = conditions(run)
    parts = [known[name] for name in names]
    return None if NOT_RECORDED in parts else ", ".join(parts)


def data(subject: Subject) -> Finding | None:
    """Compare the bytes that were read, by their hashes."""
    return same_text(subject, lambda run: _condition(run, "data"), ("data",))


TOKENS = ("data.tokenizer", "data.vocab_size")


def tokens(subject: Subject) -> Finding | None:
    """Compare what the tokens are; None if all runs have bytes.

    Tokens that one run learned are the same where another run has them from that run's file.
    """
    words: dict[str, str] = {}
    for run in subject.runs:
        words.setdefault(run.tokens, run.tokens_words)
    if words.keys() <= {BYTES}:
        return None
    return same_text(subject, lambda run: words[run.tokens], TOKENS)


def order(subject: Subject) -> Finding | None:
    """Compare what decides which bytes come when: batch, chunk, ranks and the seed of the data."""

    def of(run: Run) -> str | None:
        if run.config is None or run.result is None:
            return None
        ranks = run.result.parallel.ranks
        facts = conditions(run)
        seed = facts["data seed"]
        shared = f", over {ranks} ranks" if ranks > 1 else ""
        size, *carried = facts["chunk"].split(",")
        chunk = ",".join([size if run.tokens == BYTES else f"{size} tokens", *carried])
        return f"batch {facts['batch']}, chunk {chunk}, data seed {seed}{shared}"

    sizes = ("train.batch_size", "train.chunk_size", "train.data_seed")
    return same_text(subject, of, (*sizes, *TOKENS))


def seeds(subject: Subject) -> Finding | None:
    """Compare the seeds of the rows."""
    places: dict[str, list[str]] = {}
    groups = [{row.seeds for row in group.rows} for group in subject.groups]
    for group in subject.groups:
        for row in group.rows:
            places.setdefault(row.seeds, []).append(row.label)
    if not groups:
        return None
    if any(len(seeds_of) > 1 for seeds_of in groups):
        return unequal(listed(places))
    if "-" in places:
        return unknown(f"seeds not recorded in {named(places['-'])}")
    return equal("; ".join(places))


def precision(subject: Subject) -> Finding | None:
    """Compare the numbers of the products."""
    return same_text(subject, _precision, ("train.precision",))


def _precision(run: Run) -> str | None:
    """Return the precision of a run: as recorded, or as its setting means on its device."""
    if run.result is None:
        return None
    if run.result.precision is not None:
        return run.result.precision
    setting = run.section("train").get("precision")
    if setting in ("fp32", "bf16"):
        return str(setting)
    device = run.result.environment.device
    if setting != "auto" or device is None:
        return None
    return "bf16" if device.startswith("cuda") else "fp32"


def machine(subject: Subject) -> Finding | None:
    """Compare what the processor or GPU is called."""
    return same_text(
        subject, lambda run: run.result.environment.device_name if run.result else None
    )


def mlp(subject: Subject) -> Finding | None:
    """Compare the width of the MLP behind the mixers, over the model's width."""
    return same_number(
        subject,
        _mlp_ratio,
        lambda ratio: f"{ratio:.3g} times the width" if ratio else "none",
        MLP_NEAR,
        ("model.mlp_ratio", "model.mlp_width"),
    )


def _model(run: Run) -> Mapping[str, Any] | None:
    return run.config["model"] if run.config is not None else None


def _mlp_ratio(run: Run) -> float | None:
    model = _model(run)
    if model is None or model.get("cell") not in registry.cells():
        return None
    parts = model_parts(model)
    if len(parts) == 1:
        return _ratio_of_part(parts[0])
    layers = sum(int(part["depth"]) for part in parts)
    return sum(int(part["depth"]) * _ratio_of_part(part) for part in parts) / layers


def _ratio_of_part(model: Mapping[str, Any]) -> float:
    dim = int(model["dim"])
    if "mlp_width" not in model:
        width = int(float(model.get("mlp_ratio") or 0) * dim)
        return -(-width // DIM_ALIGNMENT) * DIM_ALIGNMENT / dim
    own = -(-(8 * dim // 3) // _LLAMA_ROUNDS) * _LLAMA_ROUNDS  # see its option mlp_width
    return (int(model["mlp_width"]) or own) / dim


def convolution(subject: Subject) -> Finding | None:
    """Compare the short convolution before the recurrence."""
    return same_text(subject, _convolution, ("model.use_conv", "model.d_conv"))


def _convolution(run: Run) -> str | None:
    model = _model(run)
    if model is None or model.get("cell") not in registry.cells():
        return None
    return by_cell(model_parts(model), _convolution_of_part)


def _convolution_of_part(model: Mapping[str, Any]) -> str:
    if (cell := model["cell"]) in _TOKEN_SHIFT:
        return _TOKEN_SHIFT[str(cell)]
    if not model.get("use_conv", "d_conv" in model):
        return "none"
    return f"{model.get('d_conv')} taps"


def negative_eigenvalues(subject: Subject) -> Finding | None:
    """Compare whether states may be multiplied by negative numbers, where that is a setting.

    Cells without the setting are what they are. A setting that is off while others have none is
    not known to be equal.
    """
    places: dict[str, list[str]] = {}
    without, silent = [], []
    for row in (row for group in subject.groups for row in group.rows):
        model = _model(row.counted[0])
        if model is None:
            silent.append(row.label)
        elif _NEGATIVE in model:
            places.setdefault("allowed" if model[_NEGATIVE] else "off", []).append(row.label)
        else:
            without.append(row.label)
    if not places:
        return unknown(f"no configuration: {named(silent)}") if silent else None
    words = listed(places)
    if len(places) > 1:
        key = f"model.{_NEGATIVE}"
        swept = [one for group in subject.groups for one in group.swept((key,))]
        return declared(f"{words}; swept: {key}") if swept else unequal(words)
    if silent or (without and "off" in places):
        others = f"; no such setting in {named(without)}" if without else ""
        return unknown(f"{words}{others}")
    return equal(f"{words}; no such setting in {named(without)}" if without else words)


def optimizer(subject: Subject) -> Finding | None:
    """Compare all settings of the optimizer and its schedule, but for those that were searched."""
    differing: dict[str, dict[str, list[str]]] = {}
    silent: list[str] = []
    swept: dict[str, None] = {}
    for group in subject.groups:
        swept |= dict.fromkeys(group.swept(("optim", "train.grad_clip")))
        for rows in group.slices(("optim", "train.grad_clip")):
            differing |= _differing(rows, subject.searched, silent)
    stuck = [
        row.label
        for group in subject.groups
        for row in group.rows
        if any(map(only_warmed_up, row.counted))
    ]
    lines = [f"{key}: {listed(places)}" for key, places in differing.items()]
    lines += [f"never left warm-up: {named(stuck)}"] if stuck else []
    if not subject.groups:
        return None
    if lines:
        return unequal("; ".join(lines[:4]))
    if silent:
        return unknown(f"no configuration: {named(silent)}")
    if chosen := sorted({key for key in subject.searched if key.startswith("optim.")}):
        return equal(f"alike but for what was tuned: {', '.join(chosen)}")
    return declared(f"swept: {', '.join(swept)}") if swept else equal(_optimizer_words(subject))


def _differing(
    rows: tuple[Row, ...], searched: frozenset[str], silent: list[str]
) -> dict[str, dict[str, list[str]]]:
    """Return the settings of the optimizer that differ, each value with its rows."""
    by_key: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        run = row.counted[0]
        if run.config is None:
            silent.append(row.label)
            continue
        for key, value in settings(run).items():
            ours = key.startswith("optim.") or key == "train.grad_clip"
            if ours and key not in searched:
                by_key.setdefault(key, {}).setdefault(value, []).append(row.label)
    several = {key: places for key, places in by_key.items() if len(places) > 1}
    if any(key == "optim.name" for key in several):
        return {"optim.name": several["optim.name"]}
    return several


def _optimizer_words(subject: Subject) -> str:
    first = subject.groups[0].rows[0].counted[0]
    optim = first.section("optim")
    return ", ".join(str(optim[key]) for key in ("name", "schedule") if key in optim)
