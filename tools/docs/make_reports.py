"""Writes docs/reports.md: the content of a report, every column with its definition.

Run it after a change to a column: ``python tools/docs/make_reports.py``. A test compares the page.
"""

from __future__ import annotations

from pathlib import Path

from elman.evaluation.result import DEFINITIONS
from elman.report.comparison.columns import COLUMNS
from elman.report.comparison.components_text import METHOD as COMPONENT_METHOD
from elman.report.comparison.plots import (
    BANDS,
    RATE_SMOOTHING,
    SHARE_SMOOTHING,
    SMOOTHING,
    THINNING,
)
from elman.report.comparison.progress import ESTIMATE
from elman.report.comparison.published_figures import WARNING
from elman.report.comparison.swept import ABOUT, ABOUT_HEAT
from elman.report.comparison.tuned_plots import ABOUT as ABOUT_TRIALS
from elman.report.comparison.tuned_plots import (
    ABOUT_CONFIRMED,
    ABOUT_FAILED,
    ABOUT_IMPORTANCE,
    ABOUT_PARALLEL,
)
from elman.report.comparison.wins_text import METHOD
from elman.report.comparison.write import CSV_COLUMNS
from elman.report.markdown import code, table
from elman.tuning.importance import LEAST_TRIALS

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"
INTRODUCTION = """\
# Reports

Every sweep of training runs ends with one table and writes four files into its folder. You can
make the same report at any time, also of a sweep that is still running, and of several sweeps and
single runs together:

    elman mode=report report.dir=outputs/2026-01-31/12-00-00-000000_sweep
    elman mode=report 'report.dir=[outputs/one_sweep,outputs/another_sweep]' report.out=my-report
    elman mode=report report.dir=outputs/one_sweep report.against=mamba2

- `report.html` has the table, the plots, every run, the published figures and all definitions. It
  is one file that loads nothing else. It works in light and dark mode, on a screen of 400 pixels,
  on paper, and without JavaScript (then the table cannot be sorted or filtered).
- `report.csv` has the rows, below each row its runs, and then the published figures, with all
  digits.
- `report.md` has the table with its notes and definitions, to put into a text.
- `audit.json` has the [audit](audit.md): what was held equal between the rows, for scripts.
- `components.json` has the gain of each component, if a suite names components and was tuned.
- `ladder.json` has the laws, predictions and crossings of a [ladder](ladder.md).

The files are made from `sweep.json` and each run's `result.json`, `config.yaml` and
`metrics.jsonl`. You can make them again: an earlier report is replaced as a whole. If a file of
such a name is not a report, elman refuses to replace it. The exit status is 0 however the runs
ended; with `report.strict=true` it is 1 if the [audit](audit.md) finds something unequal.

A run writes digests into `result.json` (of itself and of `metrics.jsonl`) and `config.yaml`. If one
of these files was edited or damaged later, a line names it. A run whose result was changed does not
count; it does again without `digests`. A run whose configuration was changed counts. Runs of
earlier versions have no digests.

![The page of three models with three seeds each](pictures/report-light.png)

## The page

- **While a sweep runs**, the page is rewritten each minute, at the lowest priority, and less often
  if that takes long. It reloads itself. It shows the state of every job, how far each running job
  is, and the time left. {estimate}
- **Failures** says how each run failed, with its last error, and which command runs it again.
- **What each can compute** is there if runs learned [tasks](tasks.md): a verdict for each model, a
  grid of models and tasks with a dot for each seed, and accuracy by the length of the rows. A model
  has one color on the whole page. Point at it in the legend to see it alone in every plot.
- **What was swept** is a picture of the swept keys, see below.
- **The table**: a heading sorts it. The field above it leaves only rows that hold all typed words
  (`mamba2 contended`), that lack a word (`-contended`), or that keep a limit (`loss<1.3`,
  `tok/s>1000`). The plots then show these rows only.
- **Each at its best** is there if the sweep was tuned: the order of the arms at the published
  setting, at each one's best, and [how that was decided](verdict.md).
- **Audit** says what was held equal between the rows, what was not, and what the files do not say;
  see [audit.md](audit.md). Terminal and `report.md` have it, too.
- **The plots**: point at a row to see it alone. Point into a plot for its values. Or select it with
  the tab key, and read it with the arrow keys.
- **Marks** stand wherever a row is shown, and as a dashed square in the plots: `contended`,
  `shared GPU`, `slow path`, `resumed`, `from weights` (`train.init_from`), `never left warm-up`,
  `long warm-up`, and `unequal` with the conditions in which a row differs from the largest set of
  comparable rows. Where two rows are compared, only marks of their own runs stand beside a speed or
  a time.

A page of 300 runs with 1,500 steps each takes 2 s of one processor core and has 2.4 MB. With 300
rows no labels overlap, on a screen of 400 pixels too.

On a dark and on a narrow screen:

<img src="pictures/report-dark.png" width="62%" alt="The same report on a dark screen" />
<img src="pictures/report-narrow.png" width="30%" alt="A report on a screen of 400 pixels" />

Printed, everything that is folded on the screen is open:

![The first printed pages of the same report](pictures/report-print.png)

## For a paper

    elman mode=report report.dir=outputs/..._sweep report.paper=true

also writes the folder `paper`:

- every figure as SVG and as PDF, the grid of tasks too;
- `table.tex` with means, standard deviations and n. Its first lines say what a preamble needs. With
  more than 35 rows it goes on over pages;
- `figures.tex`, a document that shows all of them, for pdflatex.

The captions have the definitions. Names are shown as they are; a sign beyond Latin-1 is shown by
its number. The same runs make the same bytes.

## Suites

The published figures of a suite are shown beside its rows. A sweep records its suite in
`sweep.json`, so this works for your own suite, too, wherever its file is by then. A sweep of an
earlier version has no such record; then the suite's file is read, and `--config-dir DIR` finds your
own.

## Rows

A row is one experiment. The configurations of its runs differ only in `train.seed` and in settings
that only save, log or name something (checkpoints, `log`, `kernels.backend`, paths). Its runs have
the same data, device and backend. Either all of them were replayed as a CUDA graph (`train.graph`)
or none.

The numbers of a row are means over the runs that ended with status `ok`. Any other run has its own
row with its status and its reason, and enters no mean. Its status is one of these:

- `nan`, `oom`, `crash`, `timeout`, `interrupted`, `killed`, `refused`, `not started`;
- `cancelled`, `preempted`, `node failed`: its scheduler ended it;
- `running`: a process is in its folder;
- `unfinished`: it was killed before it could write a result;
- `damaged`: its result cannot be read, or was changed after the run wrote it.

If a job of a sweep was killed after an earlier session had left a result, its status is that of its
last process, and the reason says what its result tells.

If one run lacks a number, the mean of that number is not shown. Numbers that were made by the
definitions of another metric version are shown, but enter no mean.

Rows are comparable if data, batch, chunk, seeds, duration, metric version, validation and device
are the same. If they are not all comparable, rows with the same number in the column `set` are, and
one line for each condition says what differs where. Other settings that differ and were not swept
(optimizer, clipping, compilation, version of the code) are listed as `differs too`.

{warning}

## Equal what?

Models can be compared at an equal budget of four kinds. Several may be set; the first that is spent
ends a run, and a learning rate that falls, falls to its end there.

| setting | a run ends after | fair to ask of |
| --- | --- | --- |
| `train.minutes=10` | minutes of training | what a machine can do, kernels included |
| `train.steps=1000` | optimizer steps | models at one batch and chunk |
| `train.bytes=1e9` | bytes that it learned from, over all ranks | what a model learns from data |
| `train.flops=1e18` | floating-point operations | what a model does with arithmetic |

    elman -m model=e88f_h32n16,llama,fla-gdn train.flops=1e12

No step is cut short, so a run may spend a part of a step more. `result.json` has under `budget`
what was set and what was spent, and in every run `tokens`, `flops` and `flops_per_byte`. A report
says `equal FLOPs` or `equal bytes` below its table if the rows share that budget; rows of different
budgets are not compared.

{flops}

The count is made from the plain form of the model, without computing, in well under a second. Where
that form computes many steps at once, the cell declares the operations of its recurrence
(`scan_flops`). `tests/training/test_flops.py` compares every cell with its equation, and some with
PyTorch's own counter. Operations are not time: those on states and vectors take longer than those
of large products. `mfu` is another number: it counts 6 a parameter.

## The table

{columns}

If a terminal is too narrow, the table has fewer columns and says which are missing. The files have
all columns.

## Who wins

Below the table stands, for each row, how it differs from one other row:

    e42: not distinguishable with 2 seeds; about 6 more would decide: loss +0.0250 (-0.1656 to
    +0.2156) at equal steps; val bpb disagrees: worse, +0.0400 (+0.0273 to +0.0527), p 0.016 ...
    e1: worse: val bpb +0.0967 (+0.0823 to +0.1110) at equal minutes; loss agrees, +0.0671 ...

Two numbers tell how well a model predicts: `loss` on the bytes that it learned from, and `val bpb`
on held-out ones. One of them decides, and the report says which and why. It is compared at equal
steps, bytes, FLOPs or minutes, by what bounded the runs ([which of them?](#equal-what)).

| runs | what decides | why |
| --- | --- | --- |
| a budget of minutes or FLOPs | val bpb | the last 100 steps are not an equal share of the runs |
| fewer than 1,000 steps | val bpb | the last 100 steps are more than a tenth of a run |
| at least 1,000 steps, a budget of steps or bytes | loss | it is the mean over more bytes |
| in the first two lines, if a run has no val bpb | loss, of all rows | the report says where |

The row that the others are compared with, the order of the rows, the commands for more seeds and
the pictures of what was swept follow the number that decides. The terminal shows it with the losses
at equal steps, minutes and bytes, and at equal FLOPs if they were the budget; the files have every
difference, with speed and memory. A row that is compared with no other is named with the conditions
that differ.

A loss at equal minutes or FLOPs is the mean over the last tenth of them, not over 100 steps. So two
models whose loss is the same at every moment are equal there, whether they take 200 steps or 2,000.

Below what noise hides stands the command that would decide it, ready to copy:

    to decide it: elman -m sweep.add=<folder> model=e42,e1 train.seed=3,4,5,6,7,8

It adds the next seeds to [the sweep](sweeps.md#adding-jobs), for these two rows alone: first seeds
that only one of them has, and none with which a run failed. In a suite it names the models
(`benchmark.only`), or adds the seeds to all runs if the runs of the suite have seeds of their own.
Rows of one seed get a command for two more. There is no command while the sweep runs, and none for
runs that belong to no sweep. In the sweep of the pictures above, the command for `fla-gdn` ran six
more jobs; then its val bpb was told from noise: +0.2310 (+0.1161 to +0.3460), where three seeds had
left +0.2371 (-0.1451 to +0.6193).

{method}

The interval was checked by simulation: 1,000 sweeps with a known difference for each number of
seeds. It held the true difference in

{coverage}

of them (an exact interval gives 93.0 to 97.0 % in 997 of 1,000 such checks).
`tests/report/test_differences.py` repeats this, and compares the seeds that would decide with a
simulation.

## The pictures of a tuned sweep

They stand in the block "Each at its best", and in a paper. Every arm has a color and a marker of
its own.

- A picture of the scores over each key that is a range, over each list of more than five values,
  and over the only key: {trials} The line at the published value has its name. If the range grew,
  the parts that were added are tinted. A line joins the trials of an arm if nothing but this key
  varies. The area below it is shaded within the window; with more than four arms the bars alone
  show windows. A best value at an edge is named.
- With several keys, parallel coordinates of each arm. {parallel} The sizes of a shape
  (`tune=shape`) are keys of their own.
- With several keys, the importance of each key for each arm. {importance} Trials outside the last
  range do not enter. An arm of fewer than {least} trials with a score has no number, and a sentence
  says so.

The curves of the page are those of the confirmed runs alone, each arm at its best setting.

## The gain of each component

A suite may name models with and without a component ([suites.md](suites.md#your-own)). The report
of its tuned sweep then has a sentence, a table and a picture with the gain of each component: at
each arm's own best setting, at the published one, and whether the two have the same sign.
{components}

## The plots

First comes what was swept, apart from the seed:

- One key: what decides (loss or val bpb) over its values, or of each name. {about}
- Two keys that form a grid: a heat map. {heat}
- More keys, or no grid: a picture for each key.

An axis of numbers is logarithmic if they are spread more evenly by their ratios than by their
differences. A loss is drawn at the edge if it is more than ten times as far above the best one as
the median is.

The other plots show the loss over optimizer steps, over minutes of training and over predicted
bytes; the validations, if it is only one a run as well; the throughput over minutes; and what
decides against throughput with the Pareto front of each set. Below each plot are its numbers. Those
of the losses are given at equal steps, minutes and bytes, up to the end of the shortest run.

- Loss: {smoothing}
- Loss over minutes: {shares}
- Throughput: {rates}
- Seeds: {bands}
- {thinning} The loss axis ends where the curves are after a fifth of their run. What is above is
  cut off, and the caption says so.

## Columns of report.csv

If a spreadsheet would take a text for a formula, an apostrophe is put before it.

{csv}
"""


# Of 1,000 draws each, by the tests of tests/report/test_differences.py.
COVERAGE = (
    ("2", "paired", "94.1 %"),
    ("3", "paired", "94.9 %"),
    ("5", "paired", "95.7 %"),
    ("10", "paired", "95.3 %"),
    ("3 and 3", "Welch", "96.7 %"),
    ("4 and 9", "Welch", "94.8 %"),
    ("10 and 5", "Welch", "95.0 %"),
)


def page() -> str:
    """Return the whole page."""
    return INTRODUCTION.format(
        warning=WARNING,
        flops=f"`flops_per_byte`: {DEFINITIONS['flops_per_byte']}.",
        columns=table(("column", "what it is"), [(c.head, c.definition) for c in COLUMNS]),
        smoothing=SMOOTHING,
        shares=SHARE_SMOOTHING,
        rates=RATE_SMOOTHING,
        bands=BANDS,
        estimate=ESTIMATE,
        about=ABOUT,
        trials=f"{ABOUT_TRIALS} {ABOUT_CONFIRMED} {ABOUT_FAILED}",
        parallel=ABOUT_PARALLEL,
        importance=ABOUT_IMPORTANCE,
        least=LEAST_TRIALS,
        heat=ABOUT_HEAT,
        thinning=THINNING,
        method=METHOD,
        components=COMPONENT_METHOD,
        coverage=table(("seeds", "compared", "share"), COVERAGE),
        csv=table(
            ("column", "what it holds"), [(code(key), text) for key, text in CSV_COLUMNS.items()]
        ),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
