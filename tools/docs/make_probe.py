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

    elman mode=probe probe.checkpoint=<run folder>
    elman mode=probe probe.checkpoint=<run folder> probe.length=131072 probe.path=book.txt
    elman -m mode=probe probe.checkpoint=<run>,<run>,<run>     # one page, the runs side by side

A probe loads a checkpoint, reads long stretches of text with it, and measures what its states hold.
It works for every cell and every baseline, because all carry their state in the same way. It writes
`probe.json`, which has every number with its definition, and the page `probe.html`. With
`probe.paper=true` it also writes each figure as SVG and PDF. `tools/docs/make_probe.py` writes this
page.

The text is the run's own held-out tail, or the files of `probe.path`. It is read as
`probe.documents` evenly spaced stretches of `probe.length` bytes, called documents: 8 of 131,072
bytes on a GPU and of 8,192 bytes on a CPU, or fewer if not so many fit. A document may hold several
files of the corpus. If the run was trained with `data.reset_at_documents`, its states are zero
again behind each byte 0x1e here, too.

The states are carried from chunk to chunk, so memory does not grow with the length. A call reads
so many rows that their states take an eighth of the free memory of the GPU (1 GiB on a CPU). If it
still finds no room, it is made anew in halves, which gives the same numbers.

On an H100, E88 with 102M parameters took 23 s for 8 documents of 131,072 bytes: loss 11 s, memory
3 s, recall 6 s, state 2 s, ablation 1 s; one run, on 2026-11-28. The default model took 27 s of two
CPU cores together, for 8 documents of 8,192 bytes.

Each finished part is kept in the cache until the probe has all of them. If a probe is killed, the
same command measures only what is missing. A state or a prediction that is not finite ends its
part: the page names the layer, the part of its state, the row, and how many bytes had been read.
The exit status is then 3.

## Parts

`probe.parts=[loss,memory]` measures some parts only.

- **loss**: bits per byte by position with the state carried, and with all states reset after every
  trained length. The *useful length* says how far back the context helps. It compares contexts on
  the same bytes, so the noise of the text cancels.
- **memory**: 16 bytes are replaced by those of another document, and the change is followed. It
  shows in the predictions, and in the state of each layer: its *half-life*. This needs no gradient,
  so it also holds for nonlinear states.
- **recall**: random keys with random values are written before a stretch of text, and one key is
  asked for behind it.
- **state**: norm, saturated entries, effective rank and decay of each head, over time. `grow / die`
  counts heads whose norm more than doubles, or falls below a half, behind the trained length. Cells
  without a decay are named on the page.
- **ablation**: one layer's state is reset before every step, frozen, or swapped with that of
  another document.

An attention carries its keys and values. If it has no `model.context` of its own, it attends to as
many bytes as it was trained on; `probe.window` says another number. The page says which one it was.

{interval}

## Trained on longer memory: state passing

A model that always starts from zero state has never seen the states that arise behind its trained
length. Some models get worse there. State passing repairs this. Train on from the run's weights for
500 steps in which the states are carried from batch to batch, and probe before and after:

    elman train.init_from=<run folder> train.tbptt=true train.steps=500 train.minutes=null \\
      hydra.run.dir=passed
    elman -m mode=probe probe.checkpoint=<run folder>,passed probe.length=131072

Type the settings of the first training that are not part of its model, as `data.path`,
`train.batch_size` and `train.chunk_size`. An attention needs `model.context=<bytes>` for this,
since its state would grow without end. Look at *Saved by carrying the state*: behind the trained
length it is negative where a carried state does harm, and after state passing it should not be.

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
