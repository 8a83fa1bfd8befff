"""``mode=models``: every model there is, or one of them explained. Imports torch only to count."""

from __future__ import annotations

from collections.abc import Sequence

from elman.base.consoles import say, table_console
from elman.base.errors import UserError, did_you_mean
from elman.base.exit_status import ExitStatus
from elman.config.catalog import Listed, Place, catalog, first_line, listed_models
from elman.config.keys import named_keys
from elman.config.model_files import count_sizes
from elman.models.state_sizes import DEFINITION, StateSize, counted_ahead
from elman.report.tables.models import models_table, print_explanation
from elman.runs.prepared import PreparedRun
from elman.sections.model import ModelConfig
from elman.sections.modes import ModelsConfig


def run(job: PreparedRun) -> ExitStatus:
    """Print the list of models; with a model named on the command line, what is known of it.

    Raises:
        UserError: no model has the text of ``models.filter``.
    """
    config = job.config
    assert job.folder is None
    assert config.models is not None
    places = job.places
    if "model" in named_keys(job.overrides):  # otherwise the composed model may be the default
        model = config.model
        source = first_line(model.name, places)
        (of_file,) = listed_models([model.name], places)
        own = model.vocab_size if of_file.config is None else of_file.config.vocab_size
        print_explanation(table_console(), model, source, _params(model), _state(model), own)
        return ExitStatus.OK
    _print_list(places, config.models)
    return ExitStatus.OK


def _print_list(places: Sequence[Place], settings: ModelsConfig) -> None:
    text, every = settings.filter, settings.sizes or settings.filter is not None
    entries = catalog(places, sizes=every)
    chosen = [one for one in entries if text is None or one.has(text)]
    if not chosen:
        hint = did_you_mean(str(text), [one.name for one in entries])
        raise UserError(
            f"models.filter={text}: no model has it in its name, cell, source or folder{hint}; "
            "`elman mode=models` lists all"
        )
    console = table_console()
    models_table([_counted(one) for one in chosen]).print(console)
    say(console, DEFINITION)
    several = "" if len(chosen) == 1 else "s"
    say(console, f"{len(chosen)} model{several}; elman mode=models model=<name> explains one")
    if not every:
        more = f"{count_sizes()} sizes of published comparisons"
        say(console, f"elman mode=models models.sizes=true lists also {more}")


def _counted(one: Listed) -> tuple[Listed, int | None, StateSize | None]:
    """Return a model with its parameters and state, or with what is wrong with it."""
    if one.config is None:
        return one, None, None
    try:
        return one, _params(one.config), _state(one.config)
    except UserError as error:
        return Listed(one.name, one.source, None, str(error)), None, None


def _params(model: ModelConfig) -> int:
    """Return the count that the YAML states (tests check it), or else count."""
    if model.expected_params is not None:
        return model.expected_params
    from elman.models.build import build_model

    return build_model(model, device="meta").num_params()


def _state(model: ModelConfig) -> StateSize | None:
    """Return the size of a layer's state, counted ahead for shipped models, or else count."""
    if (size := counted_ahead(model)) is not None:
        return size
    from elman.models.state_bytes import state_size

    return state_size(model)
