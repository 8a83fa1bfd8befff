"""An exported model in EleutherAI's lm-eval: where it is installed, in ``make test-slow``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from elman.modes import eval as eval_mode
from tests.export.conftest import Exported
from tests.small_run import TEXT

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
E88 = ("model=e88_tiny", "model.n_heads=2", "model.n_state=8")
MODELS = {
    "bytes": E88,
    "bpe": (*E88, "data.tokenizer=bpe", "data.vocab_size=270"),
    "resets": (*E88, "data.tokenizer=bpe", "data.vocab_size=270", "data.reset_at_documents=true"),
    "mixed": (*E88, "model.layers=[e88,llama]"),
}
WINDOW = 64
# A text of whole windows, one with a shorter last window, one shorter than a window, an empty one.
WHOLE = (TEXT[: 16 * WINDOW - 6] + "日本".encode()).decode()
DOCUMENTS = [WHOLE, TEXT[: 5 * WINDOW + 21].decode() + "\n", "café\n", "", TEXT[:20].decode()]
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


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[float, int]]:
    """Return ``evaluate(run, path, *settings)``: what ``mode=eval`` scores, with all digits."""

    def call(run: Path, path: Path, *settings: str) -> tuple[float, int]:
        scored = []
        score = eval_mode.score
        with monkeypatch.context() as patch:
            patch.setattr(
                eval_mode, "score", lambda *given: scored.append(score(*given)) or scored[-1]
            )
            command = [f"eval.checkpoint={run}", f"eval.path={path}", "eval.device=cpu"]
            assert main(["mode=eval", *command, *settings]) == ExitStatus.OK
        return scored[0]

    return call


def lm_eval(folder: Path, documents: list[str], place: Path) -> float:
    """Return the bits per byte that lm-eval's command finds."""
    tasks, file = place / "tasks", place / "test.jsonl"
    tasks.mkdir()
    file.write_text("".join(json.dumps({"text": one}) + "\n" for one in documents))
    (tasks / "bytes.yaml").write_text(TASK.format(file=file))
    model = f"pretrained={folder},trust_remote_code=True,max_length={WINDOW}"
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", model]
    command += ["--tasks", "bytes", "--include_path", str(tasks), "--device", "cpu"]
    command += ["--batch_size", "3", "--output_path", str(place / "results")]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(place / "home")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stderr
    (results,) = (place / "results").rglob("results_*.json")
    return float(json.loads(results.read_text())["results"]["bytes"]["bits_per_byte,none"])


@pytest.mark.parametrize("name", MODELS)
def test_bits_per_byte_of_lm_eval_are_those_of_eval_by_documents(
    exported: Callable[..., Exported], tmp_path: Path, evaluate: Any, name: str
) -> None:
    if "data.tokenizer=bpe" in MODELS[name]:
        pytest.importorskip("tokenizers")
    small = exported(*MODELS[name])
    theirs = lm_eval(small.folder, DOCUMENTS, tmp_path)
    window = f"eval.document_window={WINDOW}"
    ours, predicted = evaluate(small.run, tmp_path / "test.jsonl", window)
    assert predicted == sum(len(one.encode()) for one in DOCUMENTS)
    assert theirs == pytest.approx(ours, abs=1e-6)


def test_bits_per_byte_of_lm_eval_are_those_of_eval_by_windows(
    exported: Callable[..., Exported], tmp_path: Path, evaluate: Any
) -> None:
    small = exported(*E88)
    assert len(WHOLE.encode()) == 16 * WINDOW
    theirs = lm_eval(small.folder, [WHOLE], tmp_path)
    # lm-eval predicts the first byte from the tokenizer's bos_token, the separator.
    (tmp_path / "text").write_bytes(b"\x1e" + WHOLE.encode())
    ours, predicted = evaluate(small.run, tmp_path / "text")
    assert predicted == len(WHOLE.encode())
    assert theirs == pytest.approx(ours, abs=1e-6)
