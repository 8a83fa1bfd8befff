"""Writes docs/suites.md: every shipped suite, with its runs and its published figures.

Run it after a change to a suite's file, a model's or a published figure: ``python
tools/docs/make_suites.py``. A test compares the committed page with this script's output.
"""

from __future__ import annotations

from pathlib import Path

from elman.config.catalog import listed_models
from elman.config.suite_rates import tuning_of
from elman.config.suites import Suite, load_suite, suite_names
from elman.report.markdown import code, table
from elman.report.tables.suites import (
    FIGURE_HEADS,
    HEADS,
    ONLY_HEADS,
    RUN_HEADS,
    circumstances,
    facts,
    figure_cells,
    listed_runs,
    run_cells,
    suite_cells,
)

PAGE = Path(__file__).parents[2] / "docs" / "suites.md"
OWN = """\
# @package _global_
# My three cells, twenty minutes each.
defaults:
  - override /optim: adamw

benchmark:
  title: three cells of mine, about 100M
  source: my notebook
  description: What a reader must know before believing the table.
  runs:
    - [model=mamba2]
    - [model=e75h8n24]
    - [model=e88f_h32n16_2432x20, optim.lr=6e-4]

train: {minutes: 20, batch_size: 32, chunk_size: 512}
sweep: {equal_size: true}
hydra: {mode: MULTIRUN}
"""
INTRODUCTION = f"""\
# Suites

A suite is a comparison that has a name. It lists its models, the settings that they share, and what
was published for them. `elman mode=suites` prints all suites, and `elman mode=suites
benchmark=e75_100m` explains one. `tools/docs/make_suites.py` writes this page, and a test compares
it with the suites.

```sh
elman benchmark=e75_100m                             # a sweep of its runs, one per free GPU
elman benchmark=e75_100m sweep.dry_run=true          # only the checks, and the command of every job
elman benchmark=e75_100m train.minutes=1 data.path=pile.txt    # what is typed wins over the suite
elman benchmark=e75_100m train.seed=1,2,3            # each run with each of these
elman benchmark=e75_100m benchmark.only=e75h4n16,mamba2*       # some of its models
elman benchmark=e75_100m launcher=slurm              # as an array of jobs on a cluster
elman -m sweep.resume=<sweep folder>                 # run again its jobs that are not ok
```

A suite names its models, so you cannot type `model=` beside it. Some suites claim that their models
have one size. Such a suite is refused if the parameters of its models are more than
`sweep.max_params_spread` apart. Any other suite only says how far apart they are.

If a cell has no kernel for the device, its model runs as plain PyTorch, which is its slow path.
Before the first run one line for each reason says so, and the rows of such models are marked. On a
GPU two cases are refused: such a model in a suite whose figures are speeds (`claims_speed: true`),
and in any sweep a packaged baseline whose package is missing. `baseline.allow_slow=true` lets both
run and marks them.

The settings are those of the published runs, including their optimizers, so that you can compare
with the published figures. But the published runs had other data, another precision and another
padding. So compare the order of the models within a suite, not their losses. For a fair comparison
of your own add `optim=adamw`.

The line `tuning` of a suite says at which learning rate its models train. No rate was tuned for any
of them, and one rate suits some models and not others: the order at each model's own best rate may
be the reverse. Add `tune=rates` to tune all of them with equal care. The page of a suite's sweep
has the same line.

## Your own

With `--config-dir DIR` the file `DIR/benchmark/mine.yaml` is the suite `benchmark=mine`:

```yaml
{OWN}```

Every run is a list of overrides. A file may have `grid` in place of `runs`: lists of choices, each
an override or a list of them. Its runs are all combinations. The last list changes first, so with
the seeds in the first list all runs of one seed come before those of the next:

    grid:
      - [train.seed=1, train.seed=2]
      - [data=parity, [data=s5, train.steps=20000]]
      - [model=e75h8n24, model=mamba2]

`jobs_per_gpu: 4` lets four runs share each GPU, for small models whose budget is steps; see
[sweeps.md](sweeps.md#several-jobs-on-one-gpu).

`components` names models with and without a part, by family. The report of a tuned sweep
then ends in the gain of each part, at each model's own best setting and at the common one:

    components:
      E88:
        output gate: {{with: e88_tiny, without: my_e88_without_gate}}

`benchmark.published` names files of `elman.published`; their figures are shown
beside the runs of the same models. A sweep records its suite, so its report stays the same when the
file is gone.

## All
"""


def page() -> str:
    """Return the whole page."""
    suites = [load_suite(name) for name in suite_names()]
    rows = [[f"[{suite.name}](#{suite.name})", *suite_cells(suite)[1:]] for suite in suites]
    return "\n".join([INTRODUCTION, table(HEADS, rows), "", *map(section, suites)])


def section(suite: Suite) -> str:
    """Return what the page says of one suite."""
    models = {one.name: one for one in listed_models(suite.models)}
    runs = [run_cells(suite, run, models) for run in listed_runs(suite)]
    said = [f"{name}: {words}." for name, words in facts(suite, models, tuning_of(suite)).items()]
    parts = [
        f"## {suite.name}\n",
        f"{suite.title[:1].upper()}{suite.title[1:]} ({suite.citation}).\n",
        *([f"{suite.description}\n"] if suite.description else []),
        "\n".join(f"- {line}" for line in said) + "\n",
        table(RUN_HEADS, [[code(run), *rest] for run, *rest in runs]) + "\n",
    ]
    for title, heads, records in (
        ("Published:", FIGURE_HEADS, suite.published),
        ("Published only:", ONLY_HEADS, suite.published_only),
    ):
        if records:
            parts += [f"{title}\n", table(heads, [figure_cells(one) for one in records]) + "\n"]
    shared = circumstances((*suite.published, *suite.published_only))
    if shared:
        parts.append("\n".join(f"- {name}: {words}" for name, words in shared) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
