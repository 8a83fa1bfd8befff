"""Exported models in Hugging Face's transformers: where it is installed, in ``make test-slow``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import elman
from elman.base.errors import UserError
from tests.export.conftest import Exported

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
# A matrix state, power iterations with buffers, and an attention whose state grows.
MODELS = [("model=e88_tiny", "model.n_heads=2", "model.n_state=8"), ("model=e1",), ("model=llama",)]
TEXT = 'def café(x):\n\treturn "<0x41> \x1e Ğ日本🎉"  # \x00\x7f\r\n'


@pytest.fixture(params=MODELS, ids=lambda settings: settings[0])
def small(
    exported: Callable[..., Exported],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Exported:
    """Return a run and its exported folder."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path))
    return exported(*request.param)


def opened(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def tokens_of(text: bytes) -> torch.Tensor:
    return torch.tensor([list(text)])


def test_logits_states_and_gradients_are_those_of_the_run_to_the_bit(small: Exported) -> None:
    ours, theirs = elman.load(small.run), opened(small.folder)
    assert not theirs.training
    tokens = torch.randint(256, (3, 40))
    logits, states = ours(tokens)
    output = theirs(tokens)
    assert torch.equal(output.logits, logits)
    assert output.state.length == 40
    for layer, state in zip(output.state.layers, states, strict=True):
        assert all(torch.equal(layer[name], part) for name, part in state.items())
    for model, said in ((ours, logits), (theirs, output.logits)):
        model.zero_grad()
        said.float().square().mean().backward()
    gradients = dict(theirs.model.named_parameters())
    for name, weight in ours.named_parameters():
        assert torch.equal(weight.grad, gradients[name].grad), name


def test_the_loss_of_labels_is_that_of_the_model(small: Exported) -> None:
    ours, theirs = elman.load(small.run).train(), opened(small.folder).train()
    tokens = torch.randint(256, (2, 33))
    output = theirs(tokens, labels=tokens)
    assert output.state is None
    torch.testing.assert_close(output.loss, ours.loss(tokens)[0])
    some = tokens.clone()
    some[:, :20] = -100
    expected = torch.nn.functional.cross_entropy(
        ours(tokens)[0][:, 19:-1].flatten(0, 1), tokens[:, 20:].flatten()
    )
    torch.testing.assert_close(theirs(tokens, labels=some).loss, expected)


def test_generate_carries_the_state_and_writes_what_elman_writes(small: Exported) -> None:
    ours, theirs = elman.load(small.run), opened(small.folder)
    read = []
    theirs.register_forward_pre_hook(
        lambda module, args, named: read.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    # The untrained model may well write a 0x1e, which ends a text of transformers.
    settings = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None}
    text = theirs.generate(tokens_of(b"def add("), **settings)[0].tolist()
    assert read == [8, *[1] * 29]
    assert bytes(text[8:]) == bytes(elman.generate(ours, b"def add(", 30, temperature=0))
    without = theirs.generate(tokens_of(b"def add("), use_cache=False, **settings)[0].tolist()
    assert without == text
    assert read[30:] == list(range(8, 38))


def test_a_text_goes_on_from_the_state_that_generate_returns(small: Exported) -> None:
    model = opened(small.folder)
    settings = {"do_sample": False, "eos_token_id": None}
    whole = model.generate(tokens_of(b"def add("), max_new_tokens=20, **settings)
    named = {"return_dict_in_generate": True, "max_new_tokens": 8}
    first = model.generate(tokens_of(b"def add("), **named, **settings)
    state = model(first.sequences).state
    assert state.length == 16
    more = torch.cat([first.sequences, whole[:, 16:17]], dim=1)
    rest = model.generate(more, state=state, max_new_tokens=11, **settings)
    assert torch.equal(rest, whole)


def test_rows_of_different_lengths_are_written_as_each_alone(small: Exported) -> None:
    model = opened(small.folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(small.folder)
    prompts = ["def add(left, right):", "ret"]
    settings = {"do_sample": False, "max_new_tokens": 16, "eos_token_id": None}
    padded = tokenizer(prompts, return_tensors="pt", padding=True)
    if model.config.elman["model"]["cell"] == "llama":
        with pytest.raises(UserError, match="padding on the left of a row: not with cell llama"):
            model.generate(**padded, **settings)
        return
    batch = model.generate(**padded, **settings)
    for row, prompt in zip(batch, prompts, strict=True):
        alone = model.generate(tokens_of(prompt.encode()), **settings)[0]
        assert torch.equal(row[-16:], alone[-16:])


def test_a_beam_search_takes_the_states_of_its_beams_along(small: Exported) -> None:
    model = opened(small.folder)
    settings = {"do_sample": False, "max_new_tokens": 12, "num_beams": 4, "eos_token_id": None}
    prompts = torch.cat([tokens_of(b"def add("), tokens_of(b"return l")])
    carried = model.generate(prompts, **settings)
    assert torch.equal(carried, model.generate(prompts, use_cache=False, **settings))


def test_the_numbers_of_a_text_are_its_bytes(small: Exported) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(small.folder)
    for text in (TEXT, " ", "  a", "", "\x1e", "".join(map(chr, range(0x250)))):
        ids = tokenizer(text).input_ids
        assert ids == list(text.encode())
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(list(b"a\x1eb"), skip_special_tokens=True) == "ab"
    assert tokenizer.decode([0xC3]) == "�"
    assert len(tokenizer) == tokenizer.vocab_size == 256


def test_a_model_that_transformers_saves_is_read_back_by_both(
    small: Exported, tmp_path: Path
) -> None:
    model = opened(small.folder)
    with torch.no_grad():
        model.model.embedding.mul_(1.5)
    model.save_pretrained(tmp_path / "tuned")
    tokens = torch.randint(256, (1, 20))
    expected = model(tokens).logits
    assert torch.equal(opened(tmp_path / "tuned")(tokens).logits, expected)
    assert torch.equal(elman.load(tmp_path / "tuned")(tokens)[0], expected)
