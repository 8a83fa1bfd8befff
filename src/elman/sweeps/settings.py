"""Settings of a whole sweep: the sections ``launcher`` and ``sweep``, and who reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from omegaconf import DictConfig, OmegaConf

from elman.base.errors import UserError
from elman.config.compose import typed_overrides
from elman.config.keys import UNTUNED, key_of, named_keys
from elman.config.run_config import OF_SWEEPS
from elman.config.validate import check_read, validate_sweep
from elman.sections.launching import SweepConfig, SweepSettings

# Sections that every sweep has; it has `tune` only if something is tuned.
_ALWAYS = ("launcher", "sweep")
_SIZES = ("equal_size", "max_params_spread")
# A config file of the user's own may hold both settings.
_CLAIMS = ("sweep", *(f"sweep.{key}" for key in _SIZES))


def sweep_settings(tree: DictConfig) -> SweepSettings:
    """Return the typed settings of the sweep that a composed tree belongs to.

    Raises:
        UserError: a setting is wrong, or the chosen launcher does not read it.
    """
    typed = [text for text in typed_overrides(tree, "task") if text not in UNTUNED]
    named = named_keys(typed)
    sections = {name: OmegaConf.to_container(tree[name], resolve=True) for name in _ALWAYS}
    tune = OmegaConf.to_container(tree.tune, resolve=True) if tree.get("tune") else None
    if tree.mode != "train":
        check_read((key for key in named if _of("tune", key)), tree.mode)
        tune = None  # a suite's, of which another mode reads the runs alone
    settings = validate_sweep(sections["launcher"], sections["sweep"], named, tune)
    used = str(tree.hydra.runtime.choices["hydra/launcher"])
    of_launcher = sorted(key for key in named if _of("launcher", key))
    if used != f"elman_{settings.launcher.name}" and of_launcher:
        raise UserError(
            f"{of_launcher[0]}: hydra/launcher={used} does not read it; drop one of the two"
        )
    return settings


def claims(arguments: Sequence[str], earlier: Sequence[str] = ()) -> list[str]:
    """Return the overrides that say what a sweep claims about its models' sizes.

    Args:
        arguments: Overrides of this command.
        earlier: Overrides of the sweep that is resumed; those of this command replace them.
    """
    own = [text for text in arguments if key_of(text) in _CLAIMS]
    return list({text.partition("=")[0]: text for text in (*earlier, *own)}.values())


def with_sizes(settings: SweepConfig, sizes: SweepConfig, typed: Sequence[str]) -> SweepConfig:
    """Return settings with the claim about sizes that others make.

    Args:
        settings: The settings of this command.
        sizes: The settings that make the claim.
        typed: Overrides of this command about sizes; what they set stays.
    """
    keys = set(map(key_of, typed))
    left = [key for key in _SIZES if not keys & {"sweep", f"sweep.{key}"}]
    return settings.model_copy(update={key: getattr(sizes, key) for key in left})


def composed_sizes(tree: DictConfig) -> SweepConfig:
    """Return the claim about sizes that a composed tree makes, whatever its launcher.

    Raises:
        UserError: the claim is wrong.
    """
    sections = {name: OmegaConf.to_container(tree[name], resolve=True) for name in _ALWAYS}
    return validate_sweep(sections["launcher"], sections["sweep"], frozenset()).sweep


def refuse_alone(named: Iterable[str]) -> None:
    """Raise UserError if the command of a single job names settings that only sweeps read."""
    for key in sorted(named):
        if is_of_sweeps(key):
            raise UserError(f"{key}: read only in a sweep; add -m or drop it")


def refuse_in_process(named: Iterable[str], mode: str) -> None:
    """Raise UserError if the command sets up a launcher for a mode that needs none."""
    for key in sorted(named):
        if _of("launcher", key) or key in ("sweep.resume", "sweep.add"):
            raise UserError(
                f"{key}: mode={mode} runs in this process and does not read it; drop it"
            )


def without_sweep_settings(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that a single job reads."""
    return [text for text in overrides if not is_of_sweeps(key_of(text))]


def is_of_tuning(text: str) -> bool:
    """Whether an override is of group ``tune``, and turns nothing off."""
    return _of("tune", key_of(text)) and text not in UNTUNED


def is_of_sweeps(key: str) -> bool:
    """Whether a key or group belongs to a sweep as a whole."""
    return any(_of(section, key) for section in OF_SWEEPS)


def _of(section: str, key: str) -> bool:
    return key == section or key.startswith((f"{section}.", f"{section}@"))
