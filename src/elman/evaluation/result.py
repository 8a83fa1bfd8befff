"""``result.json``: every field of it, with its definition, its unit, and what older runs lack.

A run fills a :class:`RunResult` and writes it. Reports, sweeps and resumed runs read it back. The
meaning of a number is taken only from here. In the file the fields stand in the order of this
module. A field that an older run lacks has its default. A field of a newer version, which is
unknown here, is kept as it is.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from elman.base.exit_status import RunStatus
from elman.evaluation.fields import Number, Part, Whole, definitions, fact, number
from elman.evaluation.metrics import LOSS_WINDOW
from elman.sections.budget import BUDGETS

METRICS_VERSION = 1


def _known_status(value: Any) -> Any:
    if value not in set(RunStatus):
        words = ", ".join(status.value for status in RunStatus)
        raise ValueError(f"{value!r} is not a status; a run ends with one of {words}")
    return RunStatus(value)


class Seconds(Part):
    """Times of a run.

    Those of one session follow each other, with its share of ``train``, ``validation`` and
    ``checkpoint``: their sum is the time from the start of its process to its result.
    """

    start: Number = number(
        "of the last session: from the start of its process until it imports torch: Python, "
        "composing the configuration, checking settings and data files",
        "s",
    )
    imports: Number = number(
        "of the last session: importing torch and elman, and counting the operations of a step", "s"
    )
    wait: Number = number(
        "of the last session: waiting until the launcher had a place for the run, as a GPU", "s"
    )
    build: Number = number(
        "of the last session: choosing the device, opening the data, building model and optimizer, "
        "reading a checkpoint, opening the records",
        "s",
    )
    check: Number = number(
        "of the last session: estimating memory on a CPU, and checking the kernels against the "
        "reference, or finding the check that an earlier run made",
        "s",
    )
    first_step: Number = number(
        "of the last session: the discarded step before the clock starts; kernels are compiled, "
        "found or tuned in it, and the CUDA graph is recorded",
        "s",
    )
    train: Number = number(
        "training time: wall time after one discarded step, without validation and checkpoints",
        "s",
    )
    validation: Number = fact("time of all validations and tests", "s")
    checkpoint: Number = fact("time of all checkpoints", "s")
    end: Number = number(
        "of the last session: everything else from its first step until this file was written; not "
        "the picture, the printed table and the end of the process, which come later",
        "s",
    )


class DataRead(Part):
    """The bytes that a run was trained on, or its task."""

    task: str | None = fact("the task that was learned; missing for text")
    settings: dict[str, Any] = fact("of a task: its difficulty", default={})
    definition: str | None = fact("of a task: what its rows and right answers are")
    vocabulary: Whole = fact("of a task: how many symbols it has")
    paths: list[str] = fact(
        "the files that are trained on; for a pack, at most the first 1,000", default=[]
    )
    bytes: Whole = fact("bytes of the text, its held-out tail included; null for a task", "bytes")
    sha256: str | None = fact(
        "the hash of all bytes, for packs of any size and for up to 256 MiB of other files; of a "
        "task: that of its settings"
    )
    sample_sha256: str | None = fact(
        "above 256 MiB: the hash of the number of bytes and of 1,024 evenly spaced blocks of 4 KiB"
    )
    packed: dict[str, Any] | None = fact(
        "for a pack: its file, its source files (path, size, time, compression, content), a hash "
        "of the list of all source files, field, joiner, and the number of documents"
    )
    train: dict[str, Any] | None = fact(
        "if files of their own are held out: bytes and hashes of the training text alone; the keys "
        "above then cover both parts, the held-out text last"
    )
    held_out: dict[str, Any] | None = fact(
        "if files of their own are held out: those files, with their bytes and hashes"
    )
    train_bytes: Whole = fact("bytes that are trained on", "bytes")
    val_bytes: Whole = fact("bytes that are held out", "bytes")
    left: list[dict[str, Any]] = fact(
        "files and folders beside them that are not read, and why; at most the first 1,000",
        default=[],
    )
    reset_at_documents: bool = fact(
        "states were zeroed where a document starts (data.reset_at_documents)", default=False
    )
    tokenizer: dict[str, Any] | None = fact(
        "what makes tokens of the bytes (data.tokenizer): its name, its number of tokens, the hash "
        "of its definition, and bytes_per_token in the first MiB of the training text; null if a "
        "token is a byte"
    )
    chance: Number = number(
        "of a task: share of right answers of the best blind guess on rows of the trained length: "
        "always the same answer, or the most frequent one at each position, or after each present "
        "symbol, whichever is right most often; measured on rows that no run trains on",
        "share",
    )
    chance_by_length: dict[str, Number] = number(
        "the same on rows of each tested length", "share", {}
    )


class SharedWork(Part):
    """How several ranks trained one model."""

    ranks: int = fact("processes that trained the model", default=1)
    hosts: int = fact("machines on which they ran", default=1)
    shard: str = fact("how the model was sharded over them (parallel.shard)", default="none")
    exact: bool = fact("the bits are those of any number of ranks", default=False)
    virtual_shards: Whole = fact("into how many parts a batch was divided; null unless exact")
    average_every: Whole = fact(
        "optimizer steps between two averages of the weights; 0: no averages"
    )


class Environment(Part):
    """Where a run ran."""

    elman: str | None = fact("version of elman")
    revision: str | None = fact("commit of elman; it ends in -dirty if files were changed")
    python: str | None = fact("version of Python")
    platform: str | None = fact("operating system")
    host: str | None = fact("name of the machine")
    device: str | None = fact("cpu, or cuda with a number")
    device_name: str | None = fact("what the processor or GPU is called")
    instructions: str | None = fact("instructions that torch uses on the CPU")
    threads: Whole = fact("threads of torch on the CPU")
    threads_wait: str | None = fact("the settings under which idle threads of OpenMP wait")
    packages: dict[str, str | None] = fact("versions of packages; null: not installed", default={})
    gpu: dict[str, Any] | None = fact(
        "on a GPU: its uuid, memory_bytes, capability, and the version of CUDA"
    )
    gpus_of_job: list[str] | None = fact("with several ranks: the GPUs of this host's part")


class RunResult(Part):
    """How a run ended, and its numbers."""

    status: Annotated[RunStatus, BeforeValidator(_known_status)] = Field(
        description="how the run ended; docs/stopping.md says what leads to each word"
    )
    error: str | None = fact("why it ended, in one line; null if it ended well")
    contended: bool | None = number(
        "another process used the GPU during the run, or the machine's other work took more than a "
        "tenth of the CPU time that the run's threads could use; null: not measured, as on a "
        "shared GPU or in a run of a few seconds"
    )
    jobs_per_gpu: Whole = number(
        "the most jobs of its sweep that used the GPU at a time (launcher.jobs_per_gpu); with more "
        "than one, tok_s, mfu and all times are those of a shared GPU, not the model's own; null "
        "on a CPU"
    )
    model: str | None = fact("model.name of its configuration")
    cell: str | None = fact(
        "model.cell of its configuration; of a mixed stack its cells joined by +, the first "
        "layer's first"
    )
    config_hash: str | None = fact("eight hexadecimal digits of its configuration")
    started: str | None = fact("when this session of the run began, ISO 8601")
    ended: str | None = fact("when it ended, ISO 8601")
    memory_estimate_bytes: Whole = fact(
        "what a step was estimated to need before it ran; null on a GPU", "bytes"
    )
    params: Whole = number("parameters of the instantiated model, tied weights counted once")
    state_bytes: Whole = number(
        "state that one layer carries from byte to byte, for one row, with the last inputs of its "
        "convolution; of a state that grows with the row (attention) at the end of "
        "train.chunk_size bytes; of a mixed stack the mean over its layers; null if a layer does "
        "not say what its state is",
        "bytes",
    )
    state_bytes_per_byte: Whole = number(
        "what that state grows by with every byte of context: 0 but for attention; null if the "
        "layer does not say what its state is",
        "bytes",
    )
    steps: Whole = number("optimizer steps whose update was applied")
    tokens: Whole = number(
        "predicted bytes in those steps, over all ranks; with data.tokenizer: predicted tokens; of "
        "a task: positions read",
        "bytes",
    )
    flops: Number = number(
        "flops_per_byte times tokens; null if the operations of the cell cannot be counted", "FLOP"
    )
    flops_per_byte: Number = number(
        "floating-point operations of training for one predicted byte (with data.tokenizer: for "
        "one predicted token, which reports show per byte), mean over a row, from the "
        "model's equations, whatever computes them. Forward: 2 for each multiply-add of a product "
        "(weights with the head, convolutions, reads of states, attention), 1 for each other "
        "operation on a number of a matrix state; without the embedding's lookup and without work "
        "on vectors alone (norms, activations, gates, vector states). Backward: twice the forward "
        "pass; nothing that is recomputed",
        "FLOP/byte",
    )
    budget: dict[str, dict[str, float]] = number(
        f"of each limit of the run ({', '.join(BUDGETS)}) what was set and what was spent; "
        "the first that is spent ends training, with the step that reaches it",
        default={},
    )
    loss: Number = number(
        f"mean nats per predicted byte over the last {LOSS_WINDOW} optimizer steps "
        "(over loss_steps of them if the run was shorter); with data.tokenizer: nats per predicted "
        "token, which reports show per byte; of a task: nats per answer",
        "nats",
    )
    loss_steps: Whole = fact("optimizer steps in the mean of loss and bpb")
    bpb: Number = number(
        "loss / ln 2: bits per predicted byte, training data; with data.tokenizer also divided by "
        "the bytes of a token, mean over all that the run has predicted; of a task: bits "
        "per answer",
        "bits",
    )
    val_bpb: Number = number(
        "bits per predicted byte on val_tokens bytes of the held-out tail of the data: "
        "evenly spaced fixed windows of data.val_window bytes, each from zero state; with "
        "data.reset_at_documents also zero after each byte 0x1e; with data.tokenizer: the nats of "
        "the tokens of the same bytes, given the byte before them as a token of its own, over "
        "ln 2 and their number of bytes; of a task: bits per answer on "
        "data.val_rows fixed rows of the trained length, with val_tokens answers",
        "bits",
    )
    val_tokens: Whole = fact("held-out bytes that val_bpb predicts; of a task: answers", "bytes")
    val_step: Whole = fact("the optimizer step after which val_bpb was measured")
    best_val_bpb: Number = number("smallest val_bpb of all validations of the run", "bits")
    accuracy: Number = number(
        "of a task: share of right answers on data.val_rows fixed rows of the trained length, at "
        "the last validation; right: the most probable symbol is the answer; null for text",
        "share",
    )
    accuracy_by_length: dict[str, Number] = number(
        "of a task: share of right answers on data.test_rows fixed rows of each length in "
        "data.lengths, with the weights at the end of training; empty for text, or if it ended "
        "early",
        "share",
        {},
    )
    reached_accuracy: bool = number(
        "a validation reached train.until_accuracy, and training ended there", default=False
    )
    tok_s: Number = number(
        "predicted bytes per second of training time after the first 10 steps of each session "
        "(after the first step in a run of fewer than 20), without validation and checkpoints; "
        "with data.tokenizer: predicted tokens, which reports show in bytes",
        "bytes/s",
    )
    peak_memory_bytes: Number = number(
        "GPU: largest memory held by tensors; CPU: largest resident size of the process", "bytes"
    )
    data_wait_share: Number = number(
        "share of training time spent waiting for the next batch", "share"
    )
    mfu: Number = number(
        "6 * params * tok_s over the device's dense bf16 peak; null where the peak is unknown",
        "share",
    )
    seconds: Seconds = fact("times of the run, over all its sessions", "s", Seconds())
    reload_difference_bpb: Number = fact(
        "difference of val_bpb between the saved weights, read back, and those in memory; null if "
        "they were not compared",
        "bits",
    )
    backend: str | None = fact(
        "the backend that computed the recurrence (kernels.backend); of a mixed stack those of its "
        "kinds of layers, joined by + where they differ"
    )
    precision: str | None = fact(
        "numbers of the products: bf16 or fp32 (train.precision, as this device understood it)"
    )
    parity: dict[str, Any] | None = fact(
        "the check of the cell's kernels against the reference before the first step: when it "
        "passed, of which backend, precisions and sources, how many checks, and the worst error as "
        "a share of its tolerance; null where the reference itself ran"
    )
    norm_parity: dict[str, Any] | None = fact(
        "the same of the norms' kernel; null where plain PyTorch computed the norms"
    )
    path: str | None = number(
        "what computed a packaged baseline (mamba2, fla-gdn); null for other cells"
    )
    slow_path: bool | None = number(
        "it ran as plain PyTorch: without its package, or its cell has no kernel there"
    )
    graph: bool | None = number(
        "forward and backward pass were replayed as a CUDA graph, not launched one by one"
    )
    time_parts: Whole = number(
        "parts of a row that passed through the layers side by side (train.overlap), which changes "
        "the last bits of gradients; 1: the layers computed one after the other"
    )
    loss_chunk: Whole = number(
        "positions of a pass whose logits are in memory at a time, where the cross entropy passes "
        "through the head in chunks (docs/training.md, Large vocabularies); null: whole logits"
    )
    matrix_precision: str | None = number(
        "precision of Muon's products, which make the update of a matrix orthogonal; null for the "
        "other optimizers"
    )
    parallel: SharedWork = number(
        "how the work was shared: ranks and hosts, how the model was sharded, whether the bits are "
        "those of any number of ranks, and in how many virtual shards; tok_s counts all ranks, "
        "peak_memory_bytes is that of the rank with most, mfu that of one device",
        default=SharedWork(),
    )
    data: DataRead = fact("what the run was trained on", default=DataRead())
    environment: Environment = fact("versions, device, threads and revision", default=Environment())
    metrics_version: Whole = number(
        "counts up whenever a definition changes: numbers of different versions are not compared"
    )
    definitions: dict[str, str] = fact("the definition of every number", default={})
    wandb: dict[str, Any] | None = fact(
        "with log.wandb: the id and project of the run there, whether it was recorded offline, and "
        "what went wrong"
    )
    trackio: dict[str, Any] | None = fact(
        "with log.trackio: the project and name of the run there, and what went wrong"
    )
    digests: dict[str, Any] | None = fact(
        "sha256 of the rest of this file, and of the lines of metrics.jsonl as they were when it "
        "was written: a report finds what was changed later"
    )

    @classmethod
    def read(cls, tree: Any) -> RunResult | None:
        """Return the result in a tree of plain containers; None if it makes no sense."""
        try:
            return cls.model_validate(tree)
        except ValidationError:
            return None

    def tree(self) -> dict[str, Any]:
        """Return what is to be written as JSON: the fields that were set, in their order."""
        return self.model_dump(exclude_unset=True)


DEFINITIONS = dict(definitions(RunResult))
"""The definition of every number by its dotted name; each run writes them beside its numbers."""
