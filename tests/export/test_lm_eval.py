"""An exported model in EleutherAI's lm-eval: where it is installed, in ``make test-slow``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from elman.modes import eval as eval_mode
from tests.export.conftest import Exported
from tests.small_run import TEXT

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
WINDOW = 64
# The whole text is one document, whose windows are those of mode=eval: it is a multiple of them.
DOCUMENT = (TEXT[: 16 * WINDOW - 6] + "日本".encode()).decode()
TASK = """\
task: bytes
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: bits_per_byte
"""


def test_bits_per_byte_of_lm_eval_are_those_of_eval(
    exported: Callable[..., Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = exported("model=e88_tiny", "model.n_heads=2", "model.n_state=8")
    assert len(DOCUMENT.encode()) == 16 * WINDOW
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": DOCUMENT}) + "\n")
    (tasks / "bytes.yaml").write_text(TASK.format(file=tmp_path / "test.jsonl"))
    model = f"pretrained={small.folder},trust_remote_code=True,max_length={WINDOW}"
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", model]
    command += ["--tasks", "bytes", "--include_path", str(tasks), "--device", "cpu"]
    command += ["--batch_size", "3", "--output_path", str(tmp_path / "results")]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "results").rglob("results_*.json")
    theirs = json.loads(file.read_text())["results"]["bytes"]["bits_per_byte,none"]

    scored = []
    score = eval_mode.score
    monkeypatch.setattr(
        eval_mode, "score", lambda *given: scored.append(score(*given)) or scored[-1]
    )
    # lm-eval predicts the first byte from the tokenizer's bos_token, the separator.
    (tmp_path / "text").write_bytes(b"\x1e" + DOCUMENT.encode())
    settings = [f"eval.checkpoint={small.run}", f"eval.path={tmp_path / 'text'}"]
    assert main(["mode=eval", *settings, "eval.device=cpu"]) == ExitStatus.OK
    ((ours, predicted),) = scored
    assert predicted == len(DOCUMENT.encode())
    assert theirs == pytest.approx(ours, abs=1e-6)
