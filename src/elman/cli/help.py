"""What ``elman --help`` prints. Hydra's own help takes twice as long and lists its internals."""

from __future__ import annotations

import textwrap
from importlib.resources import files
from pathlib import Path

from elman.base.exit_status import MEANINGS

_TEXT = """\
elman: sequential nonlinear recurrent language models, trained and compared from one command.

usage: elman [-m] [group=choice ...] [group.key=value ...]

  elman                                           a first small run: one minute, on this machine
  elman model=e88f_h32n16 train.minutes=10        another model, ten minutes
  elman -m model=e75h4n16,e42 train.steps=500     a sweep: a job for each value, one per free GPU,
                                                  then one table; sweep.dry_run=true only plans it
  elman -m model=e75h4n16,e42 tune=rates          tune every model alike, then compare their bests
  elman benchmark=e75_100m                        a published suite: its models as one sweep
  elman mode=suites                               every suite; with benchmark=<name>, one explained
  elman -m sweep.resume=<sweep folder>            run again its jobs that are not ok
  elman launcher=slurm model=e75h4n16,e42 ...     the same as an array of jobs on a cluster
  elman train.resume=<run folder>                 continue a stopped run, in its own folder
  elman mode=eval eval.checkpoint=<run folder>    bits per byte of its newest checkpoint
  elman mode=probe probe.checkpoint=<run folder>  what its state remembers, and for how long
  elman mode=export export.checkpoint=<run folder> export.to=<folder>
                                                  its model, for Hugging Face's transformers
  elman mode=report report.dir=<sweep folder>     its table and plots, from its result files
  elman mode=verdict verdict.a=<run> verdict.b=<run>
                                                  which one is better, for scripts
  elman mode=models                               every model; with model=<name>, one explained
  elman mode=solve model=e1 solve.params=100M     the width at which it has 100M parameters
  elman mode=doctor                               what works on this machine, how to fix the rest

Every run makes a folder of its own below outputs/: config.yaml, metrics, checkpoints, result.json.

Groups (group=choice picks a file of settings):

{groups}

Keys (group.key=value changes one setting):

  elman --cfg job                   every key with its value; model=... and the like may follow
  elman --cfg job -p train          the keys of one group
  {folder}
                                    the files behind it, with a comment at every key

Flags:

  -m, --multirun                    sweep: every combination of values separated by commas
  -c, --cfg job|hydra|all           print the configuration instead of running
  -p, --package GROUP               with --cfg: only this group
  --resolve                         with --cfg: values in place of ${{references}}
  -i, --info [searchpath|...]       where files and plugins were found
  -cd, --config-dir DIR             your own YAML: DIR/model/mine.yaml is then model=mine
  -sc install=bash|zsh|fish         shell completion: eval "$(elman -sc install=bash)"
  --wide                            tables with every column, wider than the terminal
  --version, --help, --hydra-help

{statuses}
"""


def help_text(config_dir: str | None = None) -> str:
    """Return the help, with the choices of every group.

    Args:
        config_dir: Value of ``--config-dir``: a folder with more choices.
    """
    shipped = Path(str(files("elman.conf")))
    from elman.config.model_files import model_files
    from elman.config.package_files import package_folders

    folders = [shipped, *([Path(config_dir)] if config_dir else []), *package_folders().values()]
    choices: dict[str, set[str]] = {}
    for path in (path for folder in folders for path in folder.glob("*/*.yaml")):
        choices.setdefault(path.parent.name, set()).add(path.stem)
    choices["model"] |= set(model_files())
    own = {path.stem for folder in folders[1:] for path in folder.glob("model/*.yaml")}
    lines = [
        _entry(name, _models(choices[name], own) if name == "model" else sorted(choices[name]))
        for name in sorted(choices)
        if name != "hydra" and choices[name] != {"default"}
    ]
    single = [name for name in sorted(choices) if choices[name] == {"default"}]
    lines.append(f"  {', '.join(single)}: only default; set their keys")
    return _TEXT.format(groups="\n".join(lines), folder=shipped, statuses=_statuses())


def _statuses() -> str:
    """Return what every exit status means."""
    meanings = "; ".join(f"{int(status)} {words}" for status, words in MEANINGS.items())
    return textwrap.fill(f"Exit status: {meanings}.", 100)


def _models(names: set[str], own: set[str]) -> list[str]:
    """Return the entry for models: the user's own, and a pointer to the many shipped ones."""
    return [*sorted(own), f"one of {len(names)}: `elman mode=models` lists them"]


def _entry(name: str, choices: list[str]) -> str:
    """Return one group and its choices, wrapped."""
    first, rest = f"  {name:<10}", " " * 12
    return textwrap.fill(", ".join(choices), 100, initial_indent=first, subsequent_indent=rest)
