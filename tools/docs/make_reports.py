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

Every sweep of training runs ends with one table, and writes its report into its folder. You can
make the report again at any time, while the sweep runs too. One report can show several sweeps and
single runs:

    elman mode=report report.dir=outputs/2026-01-31/12-00-00-000000_sweep
    elman mode=report 'report.dir=[outputs/one_sweep,outputs/another_sweep]' report.out=my-report
    elman mode=report report.dir=outputs/one_sweep report.against=mamba2

- `report.html` has the table, the plots, every run, the published figures and all definitions. It
  is one file that loads nothing else. It works in light and dark mode, on a screen of 400 pixels,
  on paper, and without JavaScript (then the table cannot be sorted or filtered).
- `report.csv` has all numbers with all digits: the rows, below each row its runs, and then the
  published figures.
- `report.md` has the table with its notes and definitions, to put into a text.
- `audit.json` has the [audit](audit.md): what was held equal between the rows, for scripts.
- `components.json` has the gain of each [component](#the-gain-of-each-component) of a tuned suite.
- `ladder.json` has the laws, predictions and crossings of a [ladder](ladder.md).

The last two are written only if the sweep has such numbers.

The files are made from `sweep.json` and each run's `result.json`, `config.yaml` and
`metrics.jsonl`. A new report replaces the earlier one as a whole. If a file of such a name is not a
report, elman refuses to replace it.

The exit status is 0, however the runs ended. With `report.strict=true` it is 1 if the
[audit](audit.md) finds something unequal.

A run writes digests of its files into `result.json` and `config.yaml`. If `result.json`,
`metrics.jsonl` or `config.yaml` was edited or damaged later, the report names the file. A run whose
result was changed does not count. To use it as it is, remove its `digests`. A run whose
configuration was changed counts. Runs of earlier versions have no digests.

![The page of three models with three seeds each](pictures/report-light.png)

## The page

- **While a sweep runs**, the page is rewritten each minute, at the lowest priority. If that takes
  long, it is rewritten less often. The page reloads itself. It shows the state of every job, how
  far each running job is, and the time left.

  {estimate}
- **Failures** says how each run failed, with its last error, and which command runs it again.
- **What each can compute** is there if runs learned [tasks](tasks.md). It has a verdict for each
  model, a grid of models and tasks with a dot for each seed, and accuracy by the length of the
  rows. A model has one color on the whole page. Point at it in the legend to see it alone in every
  plot.
- **What was swept** is [a picture of the swept keys](#the-plots).
- **The table** is sorted by a click on a heading. Type words into the field above it to filter the
  rows: `mamba2 contended` leaves rows that hold both words, `-contended` rows that lack the word,
  and `loss<1.3` or `tok/s>1000` rows within the limit. The plots then show these rows only.
- **Each at its best** is there if the sweep was tuned. It has the order of the arms at the
  published setting, the order at each one's best, and [how that was decided](verdict.md).
- **Audit** says what was held equal between the rows, what was not, and what the files do not say
  ([audit.md](audit.md)). The terminal and `report.md` have it, too.
- **The plots**: point at a row to see it alone. Point into a plot for its values. Or select the
  plot with the tab key, and read it with the arrow keys.
- **Marks** stand wherever a row is shown, and as a dashed square in the plots. They are
  `contended`, `shared GPU`, `slow path`, `resumed`, `from weights` (`train.init_from`), `never left
  warm-up`, `long warm-up`, and `unequal` with the conditions in which a row differs from the
  largest set of comparable rows. Beside a speed or a time of two rows stand only marks of their own
  runs.

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
- `table.tex`, with means, standard deviations and n. Its first lines say what a preamble needs. A
  table of more than 35 rows goes on over pages;
- `figures.tex`, a document for pdflatex that shows all figures.

The captions have the definitions. Names are shown as they are, but a sign beyond Latin-1 is shown
by its number. The same runs make the same bytes.

## Suites

The published figures of a suite are shown beside its rows. A sweep records its suite in
`sweep.json`. So this works for your own suite, too, even if its file has moved. A sweep of an
earlier version has no such record. Its report reads the suite's file; `--config-dir DIR` says where
yours is.

## Rows

A row is one experiment: its runs differ only in their seed (`train.seed`). Settings that only save,
log or name something may differ, too (checkpoints, `log`, `kernels.backend`, paths). The runs of a
row have the same data, device and backend. Either all of them were replayed as a CUDA graph
(`train.graph`), or none.

The numbers of a row are means over the runs that ended with status `ok`. No other run enters a
mean. A report shows its status and its reason. The status is one of these:

- `nan`, `oom`, `crash`, `timeout`, `interrupted`, `killed`, `refused`, `not started`;
- `cancelled`, `preempted`, `node failed`: its scheduler ended it;
- `running`: a process is in its folder;
- `unfinished`: it was killed before it could write a result;
- `damaged`: its result cannot be read, or was changed after the run wrote it.

A resumed job may be killed although it left a result before. Its status is then that of its last
process, and the reason says what its result tells.

If one run lacks a number, the mean of that number is not shown. Numbers that were made by the
definitions of another metric version are shown, but enter no mean.

Rows are comparable if data, batch, chunk, seeds, duration, metric version, validation and device
are the same. If some rows are not, a column `set` appears: rows with the same number in it are
comparable. One line for each condition says what differs where. Other settings may differ without
having been swept (optimizer, clipping, compilation, version of the code). They are listed as
`differs too`.

{warning}

## Equal what?

Models can be compared at an equal budget, of which there are four kinds. You may set several: the
first that is spent ends a run. A schedule of the learning rate ends there, too.

| setting | a run ends after | fair to ask of |
| --- | --- | --- |
| `train.minutes=10` | minutes of training | what a machine can do, kernels included |
| `train.steps=1000` | optimizer steps | models at one batch and chunk |
| `train.bytes=1e9` | bytes that it learned from, over all ranks | what a model learns from data |
| `train.flops=1e18` | floating-point operations | what a model does with arithmetic |

    elman -m model=e88f_h32n16,llama,fla-gdn train.flops=1e12

No step is cut short, so a run may spend a part of a step more. `budget` in `result.json` says what
was set and what was spent. Every `result.json` has `tokens`, `flops` and `flops_per_byte`.

A report says `equal FLOPs` or `equal bytes` below its table if the rows share that budget. Rows of
different budgets are not compared.

{flops}

Operations are counted from the plain form of the model. Nothing is computed for it, and it takes
well under a second. Where that form computes many steps at once, the cell declares the operations
of its recurrence (`scan_flops`). `tests/training/test_flops.py` compares every cell with its
equation, and some cells with PyTorch's own counter.

Operations are not time: those on states and vectors take longer than those of large products. `mfu`
is another number: it counts 6 operations a parameter.

## The table

{columns}

If a terminal is too narrow, the table has fewer columns, and names the missing ones. The files have
all columns.

## Who wins

Below the table stands, for each row, how it differs from one other row:

    e42: not distinguishable with 2 seeds; about 6 more would decide: loss +0.0250 (-0.1656 to
    +0.2156) at equal steps; val bpb disagrees: worse, +0.0400 (+0.0273 to +0.0527), p 0.016 ...
    e1: worse: val bpb +0.0967 (+0.0823 to +0.1110) at equal minutes; loss agrees, +0.0671 ...

Two numbers tell how well a model predicts: `loss` on the bytes that it learned from, and `val bpb`
on held-out bytes. One of them decides, and the report says which and why. It is compared at equal
steps, bytes, FLOPs or minutes, whichever [ended the runs](#equal-what).

| runs | what decides | why |
| --- | --- | --- |
| a budget of minutes or FLOPs | val bpb | the last 100 steps are not an equal share of the runs |
| fewer than 1,000 steps | val bpb | the last 100 steps are more than a tenth of a run |
| at least 1,000 steps, a budget of steps or bytes | loss | it is the mean over more bytes |
| in the first two lines, if a run has no val bpb | loss, of all rows | the report says where |

The terminal shows the number that decides, with the losses at equal steps, minutes and bytes. It
adds those at equal FLOPs if they were the budget. The files have every difference, with speed and
memory. If a row is compared with no other, a line names it with the conditions that differ.

A loss at equal minutes or FLOPs is the mean over the last tenth of them, not over 100 steps. So two
models whose loss is the same at every moment are equal there, whether they take 200 steps or 2,000.

If noise hides a difference, the command that would decide it stands below, ready to copy:

    to decide it: elman -m sweep.add=<folder> model=e42,e1 train.seed=3,4,5,6,7,8

It adds seeds to [the sweep](sweeps.md#adding-jobs), for these two rows alone. Seeds that only one
of the rows has come first. A seed with which a run failed is not used again. In a suite the command
names the models (`benchmark.only`); if the runs of the suite have seeds of their own, it adds the
seeds to all runs. Rows of one seed get a command for two more. There is no command while the sweep
runs, and none for runs that belong to no sweep.

An example: in the sweep of the pictures above, three seeds had left the val bpb of `fla-gdn`
undecided, at +0.2371 (-0.1451 to +0.6193). The command ran six more jobs. Then it was told from
noise: +0.2310 (+0.1161 to +0.3460).

{method}

The interval was checked by simulation: 1,000 sweeps with a known difference, for each number of
seeds. This table has the share of sweeps in which the interval held the true difference. An exact
interval gives 93.0 to 97.0 % in 997 of 1,000 such checks.

{coverage}

`tests/report/test_differences.py` repeats this. It also compares the seeds that would decide with a
simulation.

## The pictures of a tuned sweep

They stand in the block "Each at its best", and in a paper. Every arm has a color and a marker of
its own.

**Scores over a key.** A key has such a picture if it is a range, if it is a list of more than five
values, or if it is the only key. {trials}

A named line marks the published value. If the range grew, the added parts are tinted. A line joins
the trials of an arm if nothing but this key varies. The area below it is shaded within the window.
With more than four arms, bars show the windows instead. A best value at an edge is named.

**Parallel coordinates** of each arm, if there are several keys. {parallel} The sizes of a shape
(`tune=shape`) are keys of their own.

**The importance of each key** for each arm, if there are several keys. {importance} Trials outside
the last range do not enter. An arm of fewer than {least} trials with a score has no number, and a
sentence says so.

The curves of the page are those of the confirmed runs alone, each arm at its best setting.

## The gain of each component

A suite may name models with and without a component ([suites.md](suites.md#your-own)). The report
of its tuned sweep then has a sentence, a table and a picture with the gain of each component. They
show the gain at each arm's own best setting, the gain at the published setting, and whether both
have the same sign.

{components}

## The plots

First comes what was swept, apart from the seed:

- One key: what decides (loss or val bpb) over its values, or of each name. {about}
- Two keys that form a grid: a heat map. {heat}
- More keys, or no grid: a picture for each key.

An axis is logarithmic if its numbers are spread more evenly by their ratios than by their
differences. A loss is drawn at the edge if it is more than ten times as far above the best one as
the median is.

The other plots are these:

- the loss over optimizer steps, over minutes of training, and over predicted bytes;
- the validations, even if each run has only one;
- the throughput over minutes;
- the number that decides against throughput, with the Pareto front of each set.

Below each plot are its numbers. Losses are given at equal steps, minutes and bytes, up to the end
of the shortest run. The points of the curves are means:

- Loss: {smoothing}
- Loss over minutes: {shares}
- Throughput: {rates}
- Seeds: {bands}

{thinning} The loss axis ends where the curves are after a fifth of their run. What is above is cut
off, and the caption says so.

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
        method="\n\n".join(METHOD),
        components=COMPONENT_METHOD,
        coverage=table(("seeds", "compared", "share"), COVERAGE),
        csv=table(
            ("column", "what it holds"), [(code(key), text) for key, text in CSV_COLUMNS.items()]
        ),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
