"""The numbers of a run of subword tokens, per byte: so that runs of any tokens are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from elman.evaluation.result import RunResult
from elman.report.metrics_file import Metrics

# Rates of a budget that are those of a token.
_OF_TOKENS = ("flops_per_byte",)


def bytes_per_token(result: RunResult | None) -> float:
    """Return how many bytes a predicted token of a run stood for; 1 if a token is a byte."""
    tokenizer = None if result is None else result.data.tokenizer
    if result is None or tokenizer is None:
        return 1.0
    if result.loss and result.bpb:
        return result.loss / (result.bpb * math.log(2))
    return float(tokenizer.get("bytes_per_token") or 1.0)


def result_per_byte(result: RunResult, each: float) -> RunResult:
    """Return a result whose loss, speed and amounts are per byte.

    Args:
        result: The result as the run wrote it.
        each: Bytes of a token.
    """
    if each == 1.0:
        return result
    scales = {"loss": 1 / each, "tok_s": each, "tokens": each} | dict.fromkeys(_OF_TOKENS, 1 / each)
    values = {name: getattr(result, name) for name in scales}
    known = {name: value * scales[name] for name, value in values.items() if value is not None}
    known |= {"tokens": round(known["tokens"])} if "tokens" in known else {}
    return result.model_copy(update=known)


def metrics_per_byte(metrics: Metrics | None, each: float) -> Metrics | None:
    """Return the records of a run likewise."""
    if metrics is None or each == 1.0:
        return metrics
    rates: Mapping[str, float] = {
        name: rate / each if name in _OF_TOKENS else rate for name, rate in metrics.rates.items()
    }
    sessions = tuple((step, size * each) for step, size in metrics.sessions)
    return replace(metrics, losses=metrics.losses / each, sessions=sessions, rates=rates)
