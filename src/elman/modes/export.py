"""``mode=export``: the model of a checkpoint as a folder that Hugging Face's transformers loads."""

from __future__ import annotations

import os
from pathlib import Path

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.base.run_files import CHECKPOINTS, TOKENIZER
from elman.base.units import size_text
from elman.config.run_config import RunConfig
from elman.evaluation.result import RunResult
from elman.export.folder import write_exported
from elman.models.cells import registry
from elman.report.model_card import model_card
from elman.runs.prepared import PreparedRun
from elman.runs.state import read_run_result
from elman.sections.tasks import TaskConfig
from elman.training.checkpoints.loading import load, saved_config
from elman.training.checkpoints.store import find_checkpoint


def run(job: PreparedRun) -> ExitStatus:
    """Write the folder, and print what is in it and how it is loaded.

    Raises:
        UserError: there is no such checkpoint, its model cannot leave, or the folder is not free.
    """
    settings = job.config.export
    assert settings is not None
    to = _free_folder(settings.to)
    checkpoint = find_checkpoint(settings.checkpoint)
    config = saved_config(checkpoint)
    _refuse_what_stays(config, settings.checkpoint)
    model = load(checkpoint.path)
    if model.tokenizer is not None and model.tokenizer.kind != TOKENIZER:
        raise UserError(
            f"export.checkpoint={settings.checkpoint}: its tokens are those of "
            f"{model.tokenizer.kind}, which transformers does not read; use elman.load, or train "
            f"with the same tokens as a {TOKENIZER}"
        )
    card = model_card(
        config,
        _result_of(checkpoint.path.resolve()),
        step=checkpoint.step,
        val_bpb=checkpoint.val_bpb,
        params=model.num_params(),
    )
    written = write_exported(to, config, model.state_dict(), card, model.tokenizer)
    size = size_text(sum(path.stat().st_size for path in written))
    print(f"{settings.to}: {', '.join(path.name for path in written)} ({size})")
    print(f"AutoModelForCausalLM.from_pretrained({settings.to!r}, trust_remote_code=True)")
    return ExitStatus.OK


def _free_folder(text: str) -> Path:
    """Return the folder to write; raise UserError if something is there."""
    to = Path(os.path.realpath(Path(text).expanduser()))
    if to.exists() and not to.is_dir():
        raise UserError(f"export.to={text}: this is a file; name a new folder")
    if to.exists() and any(to.iterdir()):
        raise UserError(f"export.to={text}: is not empty; name a new folder")
    return to


def _result_of(checkpoint: Path) -> RunResult | None:
    """Return the result of the run whose checkpoint this is; None if it was moved elsewhere."""
    folder = checkpoint.parent
    return read_run_result(folder.parent) if folder.name == CHECKPOINTS else None


def _refuse_what_stays(config: RunConfig, place: str) -> None:
    """Raise UserError on a model that a folder for text, with elman alone, cannot hold."""
    named = f"export.checkpoint={place}"
    if isinstance(config.data, TaskConfig):
        raise UserError(
            f"{named}: it learned the task {config.data.task}, and an exported model reads text; "
            "name a run that learned text"
        )
    for part in config.model.parts():
        package = registry.cell(part.cell).layer.partition(".")[0]
        if package != __package__.partition(".")[0]:
            raise UserError(
                f"{named}: its cell {part.cell} is declared by the package {package}, which an "
                f"exported folder does not hold; use elman.load where {package} is installed"
            )
