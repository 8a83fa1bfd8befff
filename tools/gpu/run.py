"""Runs one check or measurement on a GPU; without a name it lists them.

    python tools/gpu/run.py NAME [PART ...] [KEY=VALUE ...] [--out DIR] [--only WORD,WORD]
        [--device cuda|cpu] [--quick]

Each module of this folder with a ``CHECK`` is a check, and its head says what it proves. Results
are lines of JSON, printed and appended to DIR/NAME.jsonl at once. ``--only`` takes names of cells,
forms or models, or parts of such names. ``run.py all`` runs what ``make gpu-check`` runs. Exit
status: 0 if all results are right, 1 if one is not, 2 if there is no GPU or a word means nothing.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

FOLDER = Path(__file__).resolve().parent
if __name__ == "__main__":
    # Modules here have names of packages that PyTorch imports, such as triton.
    sys.path[0] = str(FOLDER.parents[1])

if TYPE_CHECKING:
    from tools.gpu.job import Check, Job

MODULES = {
    "all": "everything",
    **{
        name: name
        for name in (
            "kernels",
            "tile_configs",
            "triton",
            "dense",
            "tape",
            "channel",
            "norm",
            "head_norm",
            "optim",
            "train",
            "replay",
            "devices",
            "ranks",
            "typed",
            "baselines",
            "peer_speed",
            "padding",
            "vocabulary",
            "convolution",
            "peers",
            "attention",
            "first_use",
            "text",
            "exchange",
        )
    },
}
"""By name: the module of a check."""


class UsageError(Exception):
    """A word of the command line that means nothing here."""


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line names; return the exit status."""
    requested = parse(words)
    if not requested.name:
        print(listing())
        return 0
    try:
        check = declared(requested.name)
        job, parts = job_of(requested, check)
        if (problem := missing(job, check)) is not None:
            raise UsageError(problem)
    except UsageError as error:
        print(f"{requested.name}: {error}", file=sys.stderr)
        return 2
    return run(job, check, parts, requested.item)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line in parts."""
    parser = argparse.ArgumentParser(
        "run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", default="", help="of a check; none: list them")
    parser.add_argument("words", nargs="*", help="parts to run, and settings as KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu-check"))
    parser.add_argument("--only", default="", help="names or parts of them, with commas between")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="leave out what takes long")
    parser.add_argument("--item", default="", help=argparse.SUPPRESS)
    return parser.parse_intermixed_args(words)


def listing() -> str:
    """Return every name with the first line of its module, which is not imported."""
    width = max(map(len, MODULES))
    lines = []
    for name, module in MODULES.items():
        text = ast.get_docstring(ast.parse((FOLDER / f"{module}.py").read_text())) or ""
        lines.append(f"{name:{width}}  {text.splitlines()[0]}")
    return "\n".join(lines)


def declared(name: str) -> Check:
    """Return what a check declares.

    Raises:
        UsageError: there is no such check.
    """
    if name not in MODULES:
        raise UsageError(f"no such check; checks: {', '.join(MODULES)}")
    check: Check = importlib.import_module(f"tools.gpu.{MODULES[name]}").CHECK
    return check


def job_of(requested: argparse.Namespace, check: Check) -> tuple[Job, list[str]]:
    """Return a run, and the parts that it has.

    Raises:
        UsageError: a part, a name or a setting that the check does not have.
    """
    from tools.gpu.job import Job

    parts = [word for word in requested.words if "=" not in word]
    if unknown := [part for part in parts if part not in check.parts]:
        raise UsageError(f"{unknown[0]}: no such part; parts: {', '.join(check.parts)}")
    settings = dict(check.settings)
    for word in (word for word in requested.words if "=" in word):
        key, _, text = word.partition("=")
        if key not in settings:
            raise UsageError(f"{key}: no such setting; settings: {', '.join(settings) or 'none'}")
        settings[key] = value_of(text, check.settings[key], key)
    only, device = names_of(requested.only, check), requested.device
    here = check.on_cpu if device == "cpu" else tuple(check.parts)
    parts = parts or [part for part in check.default or check.parts if part in here]
    if not set(parts) <= set(here) or not parts:
        tried = ", ".join(here) or "none"
        raise UsageError(f"--device cpu: the parts that a CPU can try are: {tried}")
    out = requested.out.resolve()
    if "RANK" in os.environ:  # each rank of torchrun has a folder of its own
        out /= f"rank-{os.environ['RANK']}"
    job = Job(requested.name, out, device, only, requested.quick, settings)
    return job, parts


def value_of(text: str, default: Any, key: str) -> Any:
    """Return a setting's value, read as the type of its default.

    Raises:
        UsageError: it is not of that type.
    """
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{key}={text}: true or false is expected")
        return text.lower() == "true"
    try:
        return type(default)(text)
    except ValueError:
        raise UsageError(f"{key}={text}: {type(default).__name__} is expected") from None


def names_of(text: str, check: Check) -> tuple[str, ...]:
    """Return the names that ``--only`` chooses: the one that a word is, or those that it is in.

    Raises:
        UsageError: a word is in no name.
    """
    words = [word for word in text.split(",") if word]
    if check.names is None or not words:
        return tuple(words)
    names = list(check.names())
    chosen: list[str] = []
    for word in words:
        found = [word] if word in names else [name for name in names if word in name]
        if not found:
            raise UsageError(f"--only {word}: no such name; names: {', '.join(names)}")
        chosen += [name for name in found if name not in chosen]
    return tuple(chosen)


def missing(job: Job, check: Check) -> str | None:
    """Return what this machine lacks, or None."""
    import torch

    if job.device == "cpu":
        return None
    if not torch.cuda.is_available():
        return "torch sees no GPU here"
    if torch.cuda.device_count() < check.gpus:
        return f"torch sees one GPU here, not {check.gpus}"
    return check.problem() if check.problem is not None else None


def run(job: Job, check: Check, parts: Sequence[str], item: str) -> int:
    """Run the parts one after the other; an error in one stops no other."""
    import torch

    from tools.gpu.instruments import device_name
    from tools.gpu.job import failures

    for key, value in check.variables.items():
        os.environ.setdefault(key, value)
    job.part = "machine"
    row = {"device": device_name(job.device), "torch": torch.__version__}
    job.report({**row, **job.settings, "only": ",".join(job.only)})
    for job.part in parts:
        try:
            if item:
                assert check.item is not None, "no check of single items"
                check.item(job, item)
            else:
                check.parts[job.part](job)
        except Exception as error:
            traceback.print_exc()
            job.report({"passed": False, "error": f"{type(error).__name__}: {error}"[:500]})
    wrong = failures(job.rows)
    print(f"{job.name}: {len(job.rows) - 1} results in {job.path}, {len(wrong)} wrong", flush=True)
    for text in wrong:
        print(f"  {text}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
