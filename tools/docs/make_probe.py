"""Writes docs/probe.md: what mode=probe measures, and every number with its definition.

Run it after a change to a number: ``python tools/docs/make_probe.py``. A test compares the page.
"""

from __future__ import annotations

from pathlib import Path

from elman.probe.result import DEFINITIONS
from elman.report.probe.page import COLUMNS, INTERVAL

PAGE = Path(__file__).parents[2] / "docs" / "probe.md"
TEXT = """\
# What a state remembers

A probe loads a trained model, reads long stretches of text with it, and measures what its state
holds: how far back the model uses its context, how long its state shows a change of the text, and
what is lost without the state of one layer. It works for every cell and every baseline, because all
of them carry their state in the same way.

    elman hydra.run.dir=first                    # one minute of training; any run of text will do
    elman mode=probe probe.checkpoint=first
    elman mode=probe probe.checkpoint=first probe.length=131072 probe.path=book.txt
    elman -m mode=probe probe.checkpoint=first,second          # one page, the runs side by side

A probe has a folder of its own. There it writes `probe.json`, which has every number with its
definition, and the page `probe.html`. With `probe.paper=true` it also writes each figure as SVG and
PDF, and the summary as a LaTeX table.

The text is what the run held out from training, or the files of `probe.path`. The probe reads
`probe.documents` stretches of it, evenly spaced and each `probe.length` bytes long. They are called
documents. Without these settings there are 8 of them, of 131,072 bytes on a GPU and of 8,192 bytes
on a CPU. If the text is too short for that, there are fewer, but at least two. If it is too short
for two, their length is halved until two fit. A document may hold several files of the corpus. If
the run was trained with `data.reset_at_documents`, the states are also reset after each byte 0x1e.

The states are carried from chunk to chunk, so memory does not grow with the length. The states of
the rows that are read together take at most an eighth of the free memory of the GPU (1 GiB on a
CPU). If a call runs out of memory all the same, it is split in two. The numbers stay the same.

On an H100, E88 with 102M parameters took 23 s for 8 documents of 131,072 bytes: loss 11 s, memory
3 s, recall 6 s, state 2 s, ablation 1 s; one run, on 2026-11-28. The default model took 27 s on two
CPU cores for 8 documents of 8,192 bytes. In both, the part memory had replaced bytes only; with
removed ones it reads half as many bytes more.

Each finished part is stored in the cache until the probe has all of them. If a probe is stopped or
killed, the same command over the same bytes measures only what is missing.

If a state or a prediction is not finite, its part has no numbers. The page then names the layer,
the part of its state, the row, and how many bytes were read before. The exit status is 3.

## Parts

`probe.parts=[loss,memory]` measures only these parts.

- **loss**: bits per byte by position, once with the state carried through the whole document, and
  once with all states reset after every trained length. The *useful length* says how far back the
  context helps. All contexts predict the same bytes, so the noise of the text cancels.
- **memory**: 16 bytes are replaced by those of another document, or removed. The probe reads on and
  follows this change in the predictions of the same bytes, and in the state of each layer, whose
  *half-life* it gives. This needs no gradient, so it also holds for nonlinear states. Replaced
  bytes show how long content is held. Removed bytes also move all that was read before them, which
  a model notices if it holds positions. `probe.changes=replaced` measures one of the two only.
- **recall**: random keys with random values are written into the text. Some distance later one key
  is written again: how well does the model predict its value?
- **state**: norm, saturated entries, effective rank and decay of each head, over time. `grow / die`
  counts the heads whose norm more than doubles, or falls below a half, after the trained length.
  Forget gates and other gates that keep the state are decays. A cell that only adds to its state,
  or only multiplies it by a matrix, has none, and the page says so. Where a decay d is all that
  makes a state forget, its half-life is log 0.5 / log d bytes. Compare it with the measured one: a
  shorter one means that something else erases the state, a longer one that it is written again.
- **ablation**: the state of one layer is reset before every step, frozen, or swapped with that of
  another document.

The state of an attention is its keys and values. An attention without a `model.context` of its own
attends to as many bytes as it was trained on; `probe.window` sets another number, for every layer
with an attention. The page gives the longest.

{interval}

## Trained on longer memory: state passing

A model that always starts from zero state has never seen the states that arise after its trained
length. Some models get worse there. State passing repairs this: train the model for 500 more steps
in which the states are carried from batch to batch, and probe it before and after.

    elman train.init_from=first train.tbptt=true train.steps=500 train.minutes=null \\
      hydra.run.dir=passed
    elman -m mode=probe probe.checkpoint=first,passed

The first command takes the model from the run. Repeat the other settings of the first training in
it, such as `data.path`, `train.batch_size` and `train.chunk_size`. An attention also needs
`model.context=<bytes>`, since its state would grow without end. The picture *Saved by carrying the
state* shows the effect: after the trained length it is negative where a carried state does harm,
and after state passing it should not be. Train a control, too: the same steps without
`train.tbptt=true`. Rows that carry their states read few places of the text to the end, and the
model drifts to these; a low rate (`optim.lr=3e-5`) and many rows keep that small
([an example](findings.md#what-the-states-of-five-models-of-100m-remember)).

## The summary

{summary}

## Every number

The names are those of `probe.json`.

{numbers}
"""


def table(heads: tuple[str, str], lines: list[tuple[str, str]]) -> str:
    """Return a table of two columns as Markdown."""
    rows = [heads, ("---", "---"), *lines]
    return "\n".join(f"| {name} | {meaning.replace('|', ' ')} |" for name, meaning in rows)


def page() -> str:
    """Return the whole page."""
    return TEXT.format(
        interval=INTERVAL,
        summary=table(("column", "what it is"), [(one.head, one.definition) for one in COLUMNS]),
        numbers=table(
            ("number", "definition"), [(f"`{key}`", text) for key, text in DEFINITIONS.items()]
        ),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
