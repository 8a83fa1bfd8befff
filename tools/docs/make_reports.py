"""Writes docs/reports.md: the content of a report, every column with its definition.

Run it after a change to a column: ``python tools/docs/make_reports.py``. A test compares the page.
"""

from __future__ import annotations

from pathlib import Path

from elman.report.comparison.columns import COLUMNS
from elman.report.comparison.curves import RATE_SMOOTHING, SMOOTHING, THINNING
from elman.report.comparison.published_rows import WARNING
from elman.report.comparison.text_files import CSV_COLUMNS
from elman.report.markdown import code, table

PAGE = Path(__file__).with_name("reports.md")
INTRODUCTION = """\
# Reports

Every sweep of training runs ends with one table and writes three files into its folder. The same at
any time, of a sweep that is still running too, and of several sweeps and single runs together:

    elman mode=report report.dir=outputs/2026-01-31/12-00-00-000000_sweep
    elman mode=report 'report.dir=[outputs/one_sweep,outputs/another_sweep]' report.out=my-report

- `report.html`: the table, plots, every run, what was published, all definitions. One file that
  loads nothing, for light and dark.
- `report.csv`: the rows, under each its runs, then the published figures; all digits.
- `report.md`: the table with its notes and definitions, for a text.

They are made from `sweep.json` and each run's `result.json`, `config.yaml` and `metrics.jsonl`,
and may be made again: an earlier report is replaced whole, any other file of such a name is
refused. The exit status is 0 whatever became of the runs.

What was published for a suite stands beside its rows. A sweep records its suite in `sweep.json`, so
that this holds for a suite of your own, too, wherever its file is by then. Of a sweep of an earlier
version without such a record the suite's file is read: `--config-dir DIR` finds your own.

## Rows

A row is one experiment: runs whose configurations differ in nothing but `train.seed` and what only
saves, logs or names (checkpoints, `log`, `kernels.backend`, paths), on the same data, device and
backend, all replayed as a CUDA graph (`train.graph`) or none. Its numbers are means over the runs
that ended with status `ok`. A run that ended otherwise (`nan`, `oom`, `crash`, `timeout`,
`interrupted`, `killed`, `refused`, `not started`; `cancelled`, `preempted`, `node failed`: by its
scheduler; `running`: a process is in its folder;
`unfinished`: it was killed before it could write a result; `damaged`:
its result cannot be read) has its row, its status and its reason, and is in no mean. A mean in
which one run lacks the number is not shown. Numbers by definitions of another metric version are
shown and are in no mean.

Rows are comparable if data, batch, chunk, seeds, duration, metric version, validation and device
are the same; otherwise the column `set` numbers those that are, and a line says for each condition
what differs where. Other settings that differ and were not swept (optimiser, clipping, compilation,
version of the code) are listed as `differs too`.

{warning}

## The table

{columns}

A terminal that is too narrow gets fewer columns and says which; the files have all.

## The plots

Loss over optimizer steps, over minutes of training and over predicted bytes, throughput over
minutes, and loss against throughput with the Pareto front of each set. Below each plot its numbers:
for the losses at equal steps, minutes and bytes, up to the end of the shortest run.

- Loss: {smoothing}
- Throughput: {rates}
- {thinning} The loss axis ends where the curves are after a fifth of their run; what is above is
  cut off, and the caption says so.

## Columns of report.csv

A text that a spreadsheet would take for a formula begins with an apostrophe.

{csv}
"""


def page() -> str:
    """Return the whole page."""
    return INTRODUCTION.format(
        warning=WARNING,
        columns=table(("column", "what it is"), [(c.head, c.definition) for c in COLUMNS]),
        smoothing=SMOOTHING,
        rates=RATE_SMOOTHING,
        thinning=THINNING,
        csv=table(
            ("column", "what it holds"), [(code(key), text) for key, text in CSV_COLUMNS.items()]
        ),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
