"""What a tuned sweep's folder says of its trials."""

from __future__ import annotations

import json

from elman.sections.tune import TuneConfig
from elman.tuning.trials import Arm, trials_of

CONFIG = TuneConfig(space={"optim": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}})
RANGES = [{"optim.lr": {"low": 1e-4, "high": 1e-2}}, {"optim.lr": {"low": 1e-4, "high": 1e-1}}]


def job(number, phase, rate, folder, **more):
    own = {"arm": "e1", "phase": phase, "values": {"optim.lr": rate}, "common": False} | more
    tuning = {"trial": number if phase == "trial" else None} | own
    facts = {"number": number, "seed": 0, "folder": folder, "status": "not started"}
    return facts | {"tuning": tuning}


def sweep(folder, results, jobs):
    head = {
        "config": CONFIG.model_dump(),
        "score": "val_bpb",
        "goal": "minimize",
        "arms": [Arm("e1", "e1", "e1", {"optim.lr": 3e-4}, 1000, (1, 2), ("model=e1",)).record()],
        "ranges": RANGES,
        "state": "growing",
    }
    (folder / "sweep.json").write_text(json.dumps({"tune": head, "jobs": jobs}))
    for name, result in results.items():
        (folder / name).mkdir()
        (folder / name / "result.json").write_text(json.dumps(result))
    return trials_of(folder)


def test_each_trial_has_its_values_its_end_and_its_score(tmp_path):
    tuned = sweep(
        tmp_path,
        {
            "1_a": {"status": "ok", "val_bpb": 2.5},
            "2_b": {"status": "nan", "val_bpb": 9.0},
        },
        [job(1, "trial", 3e-4, "1_a"), job(2, "trial", 9e-3, "2_b"), job(3, "trial", 1e-3, "3_c")],
    )
    one, two, three = tuned.of("e1")
    assert (one.score, one.scored, one.ended) == (2.5, True, True)
    assert (two.score, two.scored, two.diverged, two.ended) == (None, False, True, True)
    assert (three.status, three.ended) == ("not started", False)
    assert three.values == {"optim.lr": 1e-3}
    assert tuned.config == CONFIG
    assert tuned.bounds == {"optim.lr": (1e-4, 1e-1)}
    assert tuned.arms[0].params == 1000


def test_runs_at_the_published_setting_count_as_common_too(tmp_path):
    jobs = [job(1, "best", 3e-4, "1_a", common=True), job(2, "best", 1e-3, "2_b")]
    tuned = sweep(tmp_path, {}, jobs)
    assert [one.job for one in tuned.of("e1", "best")] == [1, 2]
    assert [one.job for one in tuned.of("e1", "common")] == [1]
    assert tuned.of("e1") == []


def test_a_sweep_without_tuning_has_no_trials(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"tune": None, "jobs": []}))
    assert trials_of(tmp_path) is None
    assert trials_of(tmp_path / "nowhere") is None
