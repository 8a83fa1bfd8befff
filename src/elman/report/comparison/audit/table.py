"""The rows of every audit: one table, from which reports, ``report.allow`` and docs are made."""

from __future__ import annotations

from elman.report.comparison.audit import care, circumstances, endings, settings, sizes
from elman.report.comparison.audit.finding import Check
from elman.report.comparison.conditions import LONG_SHARE
from elman.report.comparison.deciding import NEAR
from elman.sections.launching import SweepConfig

_APART = f"{SweepConfig().max_params_spread:.0%}"

CHECKS = (
    Check(
        "params",
        "parameters",
        f"result.json: params; up to {_APART} apart, as a sweep allows (sweep.max_params_spread); "
        "of different tokens also without the embedding, which has a row for each token",
        sizes.params,
    ),
    Check(
        "state_bytes",
        "state bytes of a layer",
        f"result.json: state_bytes; up to {sizes.STATES_NEAR:.0%} apart",
        sizes.states,
        ("too few heads, so that a model has less memory than the others",),
    ),
    Check(
        "architecture",
        "each model as its file says",
        "config.yaml against the file of the model's name; what the command of every run sets to "
        "one value, and what was swept alike for every model, is left out",
        sizes.architecture,
        ("a wrong architecture under a model's name",),
    ),
    *(
        Check(
            axis.lower(),
            words,
            f"result.json: {what}; up to {NEAR:.0%} apart where it is the budget; elsewhere it "
            "follows from the budget",
            sizes.effort(axis),
        )
        for axis, words, what in (
            ("steps", "steps", "steps"),
            ("bytes", "bytes learned from", "tokens"),
            ("minutes", "minutes", "seconds.train"),
            ("FLOPs", "floating-point operations", "flops"),
        )
    ),
    Check("data", "data", "result.json: hashes and sizes of the bytes", settings.data),
    Check(
        "tokens",
        "tokens",
        "result.json: data.tokenizer; left out if every run has bytes",
        settings.tokens,
    ),
    Check(
        "order",
        "order of the data",
        "config.yaml: batch, chunk and train.data_seed; result.json: ranks",
        settings.order,
    ),
    Check("seeds", "seeds", "config.yaml: train.seed of the runs in a mean", settings.seeds),
    Check(
        "precision",
        "precision",
        "result.json: precision; of an older run train.precision and the device",
        settings.precision,
        ("bf16 for one model and fp32 for another",),
    ),
    Check(
        "mlp",
        "MLP",
        "config.yaml: model.mlp_ratio or model.mlp_width, over model.dim; up to "
        f"{settings.MLP_NEAR:.0%} apart",
        settings.mlp,
        ("an MLP behind one model and none behind another",),
    ),
    Check(
        "convolution",
        "short convolution",
        "config.yaml: model.use_conv, model.d_conv; the declaration of the cell",
        settings.convolution,
    ),
    Check(
        "negative_eigenvalues",
        "negative eigenvalues",
        "config.yaml: model.allow_neg_eigval, of the cells that have it; off beside cells without "
        "such a setting is not known to be equal",
        settings.negative_eigenvalues,
    ),
    Check(
        "optimizer",
        "optimizer and schedule",
        "config.yaml: group optim and train.grad_clip, without the keys that were tuned for each "
        f"model; no run may end in its warm-up (reports mark one above {LONG_SHARE:.0%})",
        settings.optimizer,
    ),
    Check(
        "backend",
        "backend",
        "result.json: backend and slow_path, against the backends of the cell for the device, of "
        "which the last is the fastest known; whether another tile would be faster is not known",
        circumstances.backend,
        ("a model timed without its kernels",),
    ),
    Check("machine", "machine", "result.json: environment.device_name", settings.machine),
    Check("code", "code", "result.json: environment.revision and torch", circumstances.code),
    Check(
        "contention",
        "contention",
        "result.json: contended, jobs_per_gpu; times and GPUs of the runs of all folders of the "
        "report",
        circumstances.contention,
        ("two sweeps on one GPU",),
    ),
    Check(
        "tuned",
        "tuning",
        "sweep.json: the phases of a tuned sweep; elsewhere the values of optim.lr of each "
        "model's rows",
        care.tuned,
        ("an untuned baseline",),
    ),
    Check(
        "space",
        "space of the search",
        "sweep.json: the keys of the trials of each arm; elsewhere the settings in which a "
        "model's rows differ",
        care.space,
        ("the whole shape searched for one model, and two keys for another",),
    ),
    Check(
        "trials",
        "number of trials",
        "sweep.json: the trials of each arm; elsewhere the settings that a model's rows have",
        care.trials,
        ("more trials for one model than for another",),
    ),
    Check(
        "trial_budget",
        "budget of a trial",
        "config.yaml of the trials",
        care.trial_budget,
    ),
    Check(
        "edges",
        "edges of the search",
        "sweep.json and the scores of the trials: a best value needs worse ones on both sides, and "
        "a run that diverged is worse; elsewhere the rates of each model's runs",
        care.edges,
    ),
    Check(
        "fresh_seeds",
        "fresh seeds",
        "sweep.json: seeds of the trials and of the confirmed runs",
        care.fresh_seeds,
    ),
    Check(
        "score",
        "score on held-out bytes",
        "the number that decides in this report, and how it was measured; sweep.json: what trials "
        "were judged by",
        circumstances.score,
        ("the loss of the search taken for held-out loss",),
    ),
    Check(
        "falling",
        "curves at the end",
        f"metrics.jsonl: {endings.SLOPE}; not equal if some fall and others are flat",
        endings.still_falling,
    ),
    Check(
        "provenance",
        "provenance of controls",
        "config.yaml; result.json: environment; the published figures' own settings",
        circumstances.provenance,
        ("a control without provenance",),
    ),
    Check(
        "lengths",
        "tested lengths",
        "of tasks; result.json: accuracy_by_length",
        endings.lengths,
    ),
    Check(
        "separation",
        "tasks that separate",
        "of tasks; all rows solved, or all at chance, as the grid of tasks says",
        endings.separation,
        ("a task that separates nothing",),
    ),
    Check(
        "enough_steps",
        "enough steps",
        "of tasks; no row above chance, and the ends of the curves",
        endings.enough_steps,
        ("too few steps to learn a task at all",),
    ),
    Check(
        "ability",
        "ability, not speed",
        "of tasks; a row that lost to another while its curve still falls",
        endings.ability,
        ("speed of convergence taken for ability",),
    ),
)
"""Every row of an audit, in its order."""
KEYS = tuple(check.key for check in CHECKS)
