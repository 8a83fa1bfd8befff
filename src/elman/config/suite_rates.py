"""The learning rates of a suite, as its runs are composed, and the line that says so.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from elman.base.errors import UserError
from elman.base.quoting import as_override
from elman.config.catalog import SHIPPED, Place, search_overrides
from elman.config.compose import compose_config
from elman.config.suites import GROUP, Suite, model_of

RATE = "optim.lr"
_TUNE, _OPTIM = "tune", "optim"
_TRIAL_MODELS = "tune.trial_models."
_MOST_NAMES = 4


def short(rate: float) -> str:
    """Return a rate as people write it: 3e-4."""
    digits, _, exponent = f"{rate:.6e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"


def rate_words(rates: Mapping[float, Sequence[str]], *, published: bool = True) -> str:
    """Say at which rates runs train that nobody tuned.

    Args:
        rates: What has each rate, in names of models or of runs.
        published: Whether the rates are those of a suite or of the models' files.
    """
    word = "published rate" if published else "rate"
    if len(rates) == 1:
        (rate,) = rates
        return f"every model at the {word} {short(rate)}, tuned for none: see tune=rates"
    each = "; ".join(f"{short(rate)} ({_named(names)})" for rate, names in rates.items())
    return f"{word}s, tuned for none: {each}: see tune=rates"


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def tuning_of(suite: Suite, places: Sequence[Place] = (SHIPPED,)) -> str:
    """Say how a suite's models get their rates: from its tuning, or without any.

    Args:
        suite: The suite.
        places: The search path as Hydra has it: schemes and paths.
    """
    if settings := list(filter(is_tuning, suite.shared)):
        own = [text for text in settings if not text.startswith(_TRIAL_MODELS)]
        if "tune=ladder" in own:
            return f"{' '.join(own)}: small sizes at their own best rates, a line gives the others"
        where = ", tried on a smaller model" if len(own) < len(settings) else ""
        return f"{' '.join(own)}: every model at its own best rate{where}"
    found = {_key(suite, run): _rate_of(suite, run, places) for run in _first_of_each(suite)}
    rates = {key: rate for key, rate in found.items() if rate is not None}
    if not rates:
        return "not known: no run of it can be composed"
    known = [(run, key) for run in suite.runs if (key := _key(suite, run)) in rates]
    return rate_words(by_rate((run, rates[key]) for run, key in known))


def by_rate(runs: Iterable[tuple[Sequence[str], float]]) -> dict[float, list[str]]:
    """Return what has each rate: models, if each has one; else what distinguishes the runs.

    Args:
        runs: The overrides of every run, with its rate.
    """
    found = list(runs)
    of_models: dict[str | None, set[float]] = {}
    for run, rate in found:
        of_models.setdefault(model_of(run), set()).add(rate)
    one_each = all(len(rates) == 1 for rates in of_models.values())
    names: dict[float, dict[str, None]] = {}
    for run, rate in found:
        name = model_of(run) if one_each else " ".join(filter(_is_a_choice, run))
        names.setdefault(rate, {})[name or " ".join(run)] = None
    return {rate: [*several] for rate, several in names.items()}


def is_tuning(text: str) -> bool:
    """Whether an override is about the tuning of a suite."""
    return _is_of(_TUNE, text)


def _is_of(section: str, text: str) -> bool:
    return text.partition("=")[0].partition(".")[0] == section


def _is_a_choice(text: str) -> bool:
    """Whether an override chooses a group, other than the model."""
    key = text.partition("=")[0]
    return "." not in key and key != "model"


def _key(suite: Suite, run: Sequence[str]) -> tuple[str, ...]:
    """Return what decides the rate of a run: what it says of the optimizer, and its model's recipe.

    A recipe in a model's file gives way to the optimizer that a suite's file chooses.
    """
    own = [text for text in run if _is_of(_OPTIM, text)]
    chosen = any(text.startswith(f"{_OPTIM}=") for text in suite.shared)
    return tuple(own) if chosen else (model_of(run) or "", *own)


def _first_of_each(suite: Suite) -> list[Sequence[str]]:
    """Return one run for each different key: composing all takes a tenth of a second for each."""
    found: dict[tuple[str, ...], Sequence[str]] = {}
    for run in suite.runs:
        found.setdefault(_key(suite, run), run)
    return list(found.values())


def _rate_of(suite: Suite, run: Sequence[str], places: Sequence[Place]) -> float | None:
    """Return the rate of a run; None if it cannot be composed, which the list of runs says."""
    search = search_overrides(places)
    try:
        config = compose_config([f"{GROUP}={as_override(suite.name)}", *search, *run])
    except UserError:
        return None
    return float(config.optim.lr)
