"""Writes docs/errors.md: wrong commands and the one line that each of them prints.

Run it after a change to a message: ``python tools/docs/make_errors.py``. A test runs every command
of the page and compares the output.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from elman.base.live_line import PROGRESS_VARIABLE
from elman.cli.main import main
from elman.config.compose import compose_config
from elman.runs.folder import write_config

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
# What the page shows in place of the folder that the commands ran in.
HOME = "/home/you"
INTRODUCTION = """\
# What a wrong command prints

If a command has a mistake, elman prints one line and ends with exit status 2. The line says what is
wrong, where, and what to type. Nothing is written to the disk before, and torch is not imported.
`tools/docs/make_errors.py` writes this page, and a test runs every command below.
"""
CASES: dict[str, list[str]] = {
    "Settings that do not exist": [
        "train.minute=3",
        "+train.minute=3",
        "++train.minute=3",
        "train.bacth_size=8",
        "steps=100",
        "seed=3",
        "lr=1e-3",
        "train.steps.x=3",
        "+foo=bar",
        "+train.seed=3",
        "~train.minutes",
        "~optim",
        "hydra.rnu.dir=x",
    ],
    "Groups and their choices": [
        "modle=e1",
        "model=e88f_h32n61",
        "model=E88f_h32n16",
        "model=e88_tiny.yaml",
        "model=../model/e88_tiny",
        "model=transformer",
        "model=convnet",
        "model=",
        "model=null",
        "'model=[e1,e42]'",
        "train=foo",
        "'train={steps:3}'",
        "optim=adam",
        "mode=evaluate",
        "mode=foo",
        "kernels=cpu",
        "+optim=legacy",
        "++optim=legacy",
        "model@x=e1",
        "modle/x=e1",
        "cell=e1",
    ],
    "Words and flags of other programs": [
        "help",
        "train",
        "eval run",
        "model e1",
        "E75h4n32",
        "foo.txt",
        "--model e1",
        "--level E75h4n32",
        "--data foo.txt",
        "--gpus 2",
        "--max_steps 100",
        "--epochs 3",
        "--json",
        "model=E88_h8n32",
        "model=e75_100m",
        "mode=sample",
        "optimizer=adam",
        "prompt=hello",
    ],
    "Several ranks": [
        "parallel.virtual_shards=6",
        "parallel.exact=true train.batch_size=12",
        "parallel.exact=false parallel.virtual_shards=4",
        "parallel.exact=true parallel.shard=full",
        "parallel.exact=true parallel.average_every=4",
        "parallel.shard=full parallel.average_every=4",
        "parallel.shard=full optim=muon",
        "parallel.shard=full optim=adamw train.graph=true",
        "parallel.average_every=4 optim=schedulefree",
        "parallel.shard=half",
        "parallel.data=all",
        "mode=eval eval.checkpoint=x parallel.exact=true",
    ],
    "Tasks": [
        "data=pairty",
        "data.task=parity",
        "data=parity data.path=book.txt",
        "data=parity data.modulus=7",
        "data.pairs=4",
        "data=modular_counter data.modulus=1",
        "data=recall data.pairs=17",
        "data=recall train.chunk_size=12",
        "'data=parity' 'data.lengths=40'",
        "data=keyed_fsm data.keys=120 data.modulus=120",
        "data=parity train.tbptt=true",
        "data=parity parallel.exact=true",
        "data=parity model.vocab_size=4",
        "data=parity train.until_accuracy=2",
        "train.until_accuracy=0.99",
        "-m data=parity,s3 data.val_rows=8",
    ],
    "Wrong types and impossible values": [
        "train.steps=abc",
        "train.steps=1.5",
        "train.steps=0",
        "train.steps=",
        "'train.steps=[1,2]'",
        "'train.steps={a:1}'",
        "train.minutes=-5",
        "train.batch_size=null",
        "train.tbptt=maybe",
        "train.device=gpu",
        "train.graph=maybe",
        "train.seed=-1",
        "kernels.backend=cdua",
        "optim.lr=fast",
        "optim.lr=nan",
        "optim.final_lr_ratio=2",
        "optim.name=foo",
        "optim.name=legacy",
        "data.path=3",
        "data.val_bytes=0",
        "model.dim=100",
        "model.dim=abc",
        "model.n_state=0",
        "model.wrapper=ln",
        "model.cell=e1",
        "'train.steps=${foo}'",
        "'train.steps=${foo:1}'",
    ],
    "Settings that exclude one another": [
        "train.graph=true train.device=cpu",
        "train.graph=true train.compile=true",
        "train.graph=true train.activation_checkpointing=true",
        "train.graph=true model=llama train.tbptt=true model.context=2048",
        "data.reset_at_documents=true model=mamba2",
        "data.reset_at_documents=true model=e23",
    ],
    "Mixed stacks": [
        "model=fla-gdn model.layers=[fla_gdn,e89]",
        "model=fla-gdn model.layers=[fla_gdn,fla_gdn,e88]",
        "model=fla-gdn 'model.layers=[{cell:e88,at:[5,20]}]'",
        "model=fla-gdn 'model.layers=[fla_gdn,{cell:e88,n_head:4}]'",
        "model=llama model.layers=[fla_gdn,e88]",
        "model=fla-gdn model.expansion=1 'model.layers=[e88,{cell:fla_gdn,expansion:2}]'",
    ],
    "Settings that nothing would read": [
        "eval.checkpoint=run",
        "eval=foo",
        "optim=schedulefree optim.schedule=cosine",
        "model=e1 model.n_heads=4",
        "mode=eval eval.checkpoint=run train.minutes=3",
        "mode=eval eval.checkpoint=run model=e1",
        "mode=generate generate.checkpoint=run eval.batch_size=4",
        "mode=eval eval.checkpoint=run hydra.run.dir=x",
    ],
    "Missing settings and files": [
        "mode=eval",
        "mode=generate",
        "mode=eval eval.checkpoint=nowhere",
        "mode=eval eval=foo",
        "train.init_from=nowhere",
        "data.path=nowhere.txt",
        "'data.path=*.nowhere'",
        "data.path=hollow",
        "'data.path=split/test*'",
        "data.path=book.txt data.val_path=book.txt",
        "data.path=book.txt data.val_path=lines.jsonl data.field=body data.val_bytes=600",
        "data.path=empty.txt",
        "data.path=short.txt",
    ],
    "Data that cannot be read": [
        "data.path=papers.zip",
        "data.path=papers.tar.gz",
        "data.path=picture.txt",
        "data.path=cut.txt.gz",
        "data.path=book.txt.zst",
        "data.path=table.parquet",
        "data.path=lines.jsonl",
        "data.path=lines.jsonl data.field=bdy",
        "data.path=lines.jsonl data.field=n",
        "data.path=settings.json",
        "data.path=book.txt data.format=jsonl",
        "data.path=book.txt data.format=parquet",
        "data.path=book.txt data.format=jason",
        "data.path=book.txt data.format=raw data.field=body",
        "data.field=body",
        "data.format=jsonl",
    ],
    "Tokens": [
        "data.tokenizer=bpe",
        "data.tokenizer=bpe:256",
        "data.tokenizer=bpe:8k",
        "data.vocab_size=8192",
        "data.tokenizer=nowhere.json",
        "data.tokenizer=book.txt",
        "mode=eval eval.checkpoint=run eval.field=body",
    ],
    "Commands that cannot be read": [
        "foo",
        "evl",
        "train.steps",
        "train.steps==3",
        "'train.steps=[1,2'",
        '"data.path=\'a"',
        "=3",
        "train..steps=3",
        "'a b=3'",
        "data.path=a=b.txt",
        "'train.steps=int(abc)'",
        "'train.steps=twice(3)'",
        "train.steps=3 foo",
    ],
    "Flags": [
        "--foo",
        "--multrun",
        "--steps=100",
        "--batch-size 4",
        "--cfg jbo",
        "--cfg",
        "--cfg job -p tarin",
        "-m --cfg job",
        "--resolve",
        "-p train",
        "-sc",
        "--help=me",
        "--config-dir nowhere",
        "--config-name nowhere",
        "--config-path nowhere",
        "'hydra.searchpath=[file://nowhere]'",
    ],
    "Sweeps": [
        "model=e1,e42",
        "'train.steps=range(1,4)'",
        "data.path=book.txt,notes",
        "-m train.steps=3,abc",
        "-m model=e1,e43 train.steps=3",
        "-m train.minute=1,2",
        "-m model=e1,e88_tiny model.n_heads=4",
        "-m 'train.steps=interval(1,5)'",
        "-m 'model=glob(zz*)'",
        "-m hydra.job.name=a,b",
        "-m hydra.mode=RUN model=e1,e42",
        "-m hydra.run.dir=x model=e1,e42",
        "-m hydra.sweep.dir=notes model=e1,e42",
        "-m train.resume=run,run",
        "-m foo",
        "-m model=e1,e42 model.expected_params=7",
        "-m model=e1,e88_tiny sweep.equal_size=true",
        "-m sweep.resume=notes",
        "-m sweep.add=notes train.seed=3",
        "-m sweep.add=notes sweep.resume=notes",
        "-m train.seed=1,2 sweep.allow_changed_code=true",
        "sweep.add=notes train.seed=3",
        "sweep.dry_run=maybe",
    ],
    "Suites": [
        "benchmark=e75_10m",
        "benchmark=",
        "benchmark=e75_100m,baselines",
        "-m benchmark=e75_100m,baselines",
        "benchmark=e75_100m model=e75h4n16",
        "benchmark=e75_100m model=e1",
        "benchmark=e75_100m model=e1,e42",
        "benchmark=e75_100m benchmark.only=e75h4n61",
        "benchmark=e75_100m 'benchmark.runs=[]'",
        "benchmark=e75_100m benchmark.title=mine",
        "benchmark=e75_100m train.minute=3",
        "benchmark=e75_100m train.minutes=0",
        "benchmark=e75_100m hydra.mode=RUN",
        "benchmark=e75_100m train.resume=run",
        "benchmark=quick_test model.depth=2 model.dim=1024",
        "benchmark=batch_scaling train.batch_size=8",
        "benchmark=quick_test mode=eval eval.checkpoint=run",
        "benchmark.only=e1",
        "-m model=e1,e42 benchmark.only=e1",
        "quick_test",
        "mode=suites benchmark=quick_tets",
        "mode=suites train.steps=3",
        "-m mode=suites",
        "--config-dir mine benchmark=misspelled",
        "--config-dir mine benchmark=bare",
        "--config-dir mine benchmark=alone",
        "--config-dir mine benchmark=packaged",
        "--config-dir mine mode=suites benchmark=uncited",
    ],
    "Launchers": [
        "launcher.workers=2",
        "launcher=gpu",
        "-m launcher.worker=2",
        "-m launcher.workers=0",
        "-m launcher.partition=main",
        "-m launcher=local launcher.workers=2",
        "-m launcher.name=slurm",
        "-m launcher.gpus=0",
        "-m launcher.workers=1,2",
        "-m hydra/launcher=basic launcher.workers=2",
        "-m mode=solve solve.params=1M launcher.workers=2",
        "launcher=slurm train.steps=100",
        "launcher=slurm train.minutes=9 launcher.gpus_per_job=3 launcher.nodes=2",
        "launcher=local launcher.gpus_per_job=2",
        "launcher.gpus_per_job=1",
        "launcher.gpus_per_job=0",
        "launcher.jobs_per_gpu=2 train.steps=100",
        "-m launcher.jobs_per_gpu=2 train.seed=1,2",
        "-m launcher.jobs_per_gpu=2 train.minutes=9",
        "-m launcher.jobs_per_gpu=2 launcher.gpus_per_job=2 train.steps=100",
        "-m launcher.jobs_per_gpu=2 mode=bench model=e1,e42",
        "-m launcher.jobs_per_gpu=0 train.steps=100",
        "benchmark=batch_scaling train.minutes=null train.steps=100 launcher.jobs_per_gpu=2",
        "launcher=slurm train.minutes=9 launcher.jobs_per_gpu=2",
        "launcher.gpus_per_job=2 launcher.workers=2",
        "launcher.gpus_per_job=2 mode=parity",
        "-m launcher.gpus_per_job=2 mode=parity",
        "launcher=slurm train.minutes=9 launcher.minutes=2",
    ],
    "Run folders": [
        "hydra.run.dir=run",
        "hydra.run.dir=notes",
        "hydra.run.dir=book.txt",
        "train.resume=nowhere",
        "train.resume=notes",
        "train.resume=run/checkpoints",
        "train.resume=run/checkpoints/step-0000100",
        "train.resume=busy",
        "train.resume=run model=e1",
        "train.resume=run model.dim=512",
        "train.resume=run optim=legacy",
        "train.resume=run train.seed=7",
        "train.resume=run optim.schedule=constant",
        "train.resume=run train.steps=0",
        "train.resume=run hydra.run.dir=x",
    ],
    "Sizes and models": [
        "solve.params=100M",
        "mode=solve",
        "mode=solve solve.params=100X",
        "mode=solve solve.params=0",
        "mode=solve solve.params=1e20",
        "mode=solve solve.params=100M solve.flops=1G",
        "mode=solve solve.params=100M solve.ranks=1000000",
        "mode=solve solve.params=100M model.depth=1000000",
        "mode=solve solve.param=100M",
        "mode=solve solve.params=100M solve.over=width",
        "mode=solve solve.params=100M model=e1 solve.over=n_heads",
        "mode=solve solve.params=100M model=e1 solve.over=[dim,rank]",
        "mode=solve solve.params=100M model=e1 solve.over=[dim,dim]",
        "mode=solve solve.params=100M model=e4 solve.over=[dim,rank] model.rank=64",
        "mode=solve solve.params=100M solve.over=depth solve.depth=20",
        "mode=solve solve.params=100M model.dim=512",
        "mode=solve solve.params=100M solve.depth=4 model.depth=8",
        "mode=solve solve.params=100M optim=muon",
        "mode=solve solve.params=100M hydra.run.dir=x",
        "mode=solve solve.standard=true solve.params=100M",
        "mode=models model=e60z",
        "mode=models models.filter=zebra",
        "mode=models model=e68 models.filter=e6",
        "mode=models model.n_heads=4",
        "mode=models train.steps=3",
        "-m mode=solve solve.params=10M,100X",
        "-m mode=solve solve.params=10M,20M hydra.sweep.dir=x",
        "-m mode=models,train",
    ],
    "Reports": [
        "mode=report",
        "mode=report report.dir=",
        "mode=report report.dir=nowhere",
        "mode=report report.dir=book.txt",
        "mode=report report.dir=nowhere report.allow=[mpl]",
        "mode=report report.dir=notes",
        "mode=report report.dir=run",
        "mode=report report.dir=run report.out=out report.against=e42",
        "mode=report report.dir=run report.out=notes report.paper=true",
        "mode=report report.dir=run report.out=out report.paper=pdf",
        "mode=report report.dir=run report.result_schema=true",
        "mode=report report.dir=run report.out=out paper=true",
        "report.paper=true",
        "mode=report 'report.dir=[]'",
        "mode=report report.dri=run",
        "mode=report report.dir=run train.steps=3",
        "mode=report report.dir=run hydra.run.dir=x",
        "report.dir=run",
        "-m mode=report,train",
    ],
    "Tuning": [
        "-m model=e1,e42 tune=ratez",
        "-m model=e1,e42 tune=rates,shape",
        "-m model=e1,e42 tune.trials=4",
        "-m model=e1,e42 tune=rates tune.trails=4",
        "-m model=e1,e42 tune=rates tune.trials=3",
        "-m model=e1,e42 tune=rates tune.space.optim.lr.low=0.01",
        "-m model=e1,e42 tune=rates tune.space.optim.lr.low=0",
        "-m model=e1,e42 tune=rates optim.lr=0.5",
        "-m model=e1,e42 tune=rates optim.lr=0.001,0.002",
        "-m model=e1,e42 tune=rates tune.seed=42",
        "-m model=e1,e42 tune=rates tune.minutes=5",
        "-m model=e1,e42 tune=rates tune.score=accuracy",
        "-m model=e1,e42 tune=rates '+tune.space.optim.matrix_lr={low: 0.001, high: 0.01}'",
        "-m model=e1,e42 tune=rates '+tune.space.model.dim={values: [256, 512]}'",
        "-m model=e1,e42 tune=rates tune.sampler=cma_es",
        "model=llama tune=shape tune.hold_params=0",
        "mode=bench tune=rates",
    ],
    "Verdicts": [
        "mode=verdict",
        "mode=verdict verdict.a=run",
        "mode=verdict verdict.a=run verdict.b=",
        "mode=verdict verdict.a=nowhere verdict.b=run",
        "mode=verdict verdict.a=notes verdict.b=run",
        "mode=verdict verdict.a=run verdict.b=run",
        "mode=verdict verdict.a=e42 verdict.b=run verdict.dir=run",
        "mode=verdict verdict.a=e42 verdict.b=run verdict.dir=nowhere",
        "mode=verdict verdict.a=run verdict.b=run verdict.json=yaml",
        "mode=verdict verdict.a=run verdict.b=run report.dir=run",
    ],
    "Probes": [
        "mode=probe",
        "mode=probe probe.checkpoint=nowhere",
        "mode=probe probe.checkpoint=run probe.length=8",
        "mode=probe probe.checkpoint=run probe.documents=1",
        "mode=probe probe.checkpoint=run probe.parts=[memry]",
        "mode=probe probe.checkpoint=run probe.parts=[]",
        "mode=probe probe.checkpoint=run probe.field=body",
        "mode=probe probe.checkpoint=run model=e1",
    ],
    "Exports": [
        "mode=export",
        "mode=export export.checkpoint=run",
        "mode=export export.checkpoint=nowhere export.to=out",
        "mode=export export.checkpoint=run export.to=notes",
        "mode=export export.checkpoint=run export.to=run",
        "mode=export export.checkpoint=run export.to=out export.device=cuda",
        "mode=export export.checkpoint=run export.to=out model=e1",
    ],
    "Proofs and benchmarks": [
        "parity.seed=1",
        "mode=parity parity.quick=maybe",
        "mode=parity parity.quik=true",
        "mode=parity train.steps=3",
        "mode=bench 'bench.models=[e1,e43]'",
        "mode=bench 'bench.peers=[pytorch]'",
        "mode=bench 'bench.backends=[]'",
        "mode=bench 'bench.backends=[gpu]'",
        "mode=bench bench.models=3",
        "mode=bench bench.level=model",
        "mode=bench bench.rounds=0",
        "mode=bench 'bench.shapes=[32x512,0x8]'",
        "mode=bench kernels.backend=cpu",
        "mode=bench train.batch_size=4",
        "-m mode=bench,parity",
    ],
    "Your own YAML files": [
        "--config-dir mine model=broken",
        "--config-dir mine model=misspelled",
        "--config-dir mine model=lost",
        "--config-dir mine model=mien",
        "--config-dir mine model=latin",
        "--config-dir mine model=selfish",
    ],
}


def make_files(folder: Path) -> None:
    """Make the files that the commands of the page name."""
    (folder / "notes").mkdir()
    (folder / "notes" / "todo.txt").write_text("nothing\n")
    (folder / "notes" / "paper").mkdir()
    (folder / "notes" / "paper" / "table.tex").write_text("My own table.\n")
    (folder / "book.txt").write_text("It was a dark and stormy night.\n" * 10_000)
    (folder / "short.txt").write_text("It was a dark and stormy night.\n")
    (folder / "empty.txt").touch()
    (folder / "papers.zip").write_bytes(b"PK\x03\x04")
    (folder / "papers.tar.gz").write_bytes(gzip.compress(bytes(257) + b"ustar" + bytes(250)))
    (folder / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"It was a dark and stormy night.\n")[:-9])
    (folder / "book.txt.zst").write_text("It was a dark and stormy night.\n")
    (folder / "table.parquet").write_bytes(b"PAR1 and no end")
    (folder / "hollow").mkdir()
    (folder / "split").mkdir()
    (folder / "split" / "test.txt").write_text("It was a dark and stormy night.\n")
    (folder / "settings.json").write_text('{"dim": 512, "depth": 4}\n')
    (folder / "lines.jsonl").write_text('{"body": "It was", "n": 1}\n{"body": "a dark", "n": 2}\n')
    for name in ("run", "busy"):
        (folder / name / "checkpoints").mkdir(parents=True)
        write_config(folder / name, compose_config(["optim=schedulefree", "train.steps=100"]))
    (folder / "run" / "checkpoints" / "step-0000100").mkdir()
    (folder / "busy" / ".lock").write_text("4242\n")
    models = folder / "mine" / "model"
    models.mkdir(parents=True)
    (models / "broken.yaml").write_text("dim: 256\ndepth: [2\n")
    cell = "defaults: [/cell/e88@_here_, _self_]\ndim: 256\ndepth: 2\n"
    (models / "misspelled.yaml").write_text(cell + "n_haeds: 4\n")
    (models / "lost.yaml").write_text(cell.replace("e88@", "e888@"))
    (models / "mine.yaml").write_text(cell)
    (models / "latin.yaml").write_bytes(cell.encode() + b"# caf\xe9\n")
    (models / "selfish.yaml").write_text(cell.replace("/cell/e88", "selfish"))
    suites = folder / "mine" / "benchmark"
    suites.mkdir()
    for name, (section, sweep) in {
        "misspelled": ("title: a, source: b, run: [[model=mine]]", "MULTIRUN"),
        "bare": ("title: a, source: b, runs: [[mine]]", "MULTIRUN"),
        "alone": ("title: a, source: b, runs: [[model=mine]]", "null"),
        "uncited": ("title: a, source: b, runs: [[model=mine]], published: [e75_10m]", "MULTIRUN"),
    }.items():
        text = f"# @package _global_\nbenchmark: {{{section}}}\nhydra: {{mode: {sweep}}}\n"
        (suites / f"{name}.yaml").write_text(text)
    (suites / "packaged.yaml").write_text("benchmark: {title: a, runs: [[model=mine]]}\n")


@contextlib.contextmanager
def surroundings(folder: Path) -> Iterator[None]:
    """Make ``folder`` the current one, with the files of the page and a run that is under way."""
    before, progress = Path.cwd(), os.environ.get(PROGRESS_VARIABLE)
    make_files(folder)
    os.chdir(folder)
    os.environ[PROGRESS_VARIABLE] = "off"  # a slow machine would print more than the error
    try:
        with (folder / "busy" / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    finally:
        os.chdir(before)
        del os.environ[PROGRESS_VARIABLE]
        if progress is not None:
            os.environ[PROGRESS_VARIABLE] = progress


def outcome(command: str) -> tuple[int, str, str]:
    """Run one command here and return its exit status, its output and what it said of errors."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = main(shlex.split(command))
    here = str(Path.cwd())
    return status, output.getvalue(), errors.getvalue().replace(here, HOME)


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    with tempfile.TemporaryDirectory() as folder, surroundings(Path(folder).resolve()):
        for title, commands in CASES.items():
            entries = [f"$ elman {command}\n{outcome(command)[2]}" for command in commands]
            parts.append(f"## {title}\n\n```text\n" + "\n".join(entries) + "```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
