"""Exported models in Hugging Face's transformers: where it is installed, in ``make test-slow``."""

from __future__ import annotations

import json
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
E88 = ("model=e88_tiny", "model.n_heads=2", "model.n_state=8")
# A matrix state, power iterations with buffers, an attention whose state grows, learned tokens, and
# a mixed stack.
MODELS = {
    "e88": E88,
    "e1": ("model=e1",),
    "llama": ("model=llama",),
    "bpe": (*E88, "data.tokenizer=bpe", "data.vocab_size=270", "data.reset_at_documents=true"),
    "mixed": (*E88, "model.layers=[e88,llama]"),
}
TEXT = 'def café(x):\n\treturn "<0x41> \x1e Ğ日本🎉"  # \x00\x7f\r\n'


@pytest.fixture(params=MODELS)
def small(
    exported: Callable[..., Exported],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Exported:
    """Return a run and its exported folder."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path))
    if request.param == "bpe":
        pytest.importorskip("tokenizers")
    return exported(*MODELS[request.param])


def opened(folder: Path, **named: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, **named
    )


def tokenizer_of(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def tokens_of(text: bytes) -> torch.Tensor:
    """Return tokens that every vocabulary here has."""
    return torch.tensor([list(text)])


def can_pad(model: Any) -> bool:
    return not any(layer.cell.name == "llama" for layer in model.model.layers)


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
    prompt = tokenizer_of(small.folder)("def add(", return_tensors="pt").input_ids
    length = prompt.shape[1]
    read = []
    theirs.register_forward_pre_hook(
        lambda module, args, named: read.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    # The untrained model may well write a 0x1e, which ends a text of transformers.
    settings = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None}
    text = theirs.generate(prompt, **settings)[0].tolist()
    assert read == [length, *[1] * 29]
    new, decode = text[length:], bytes if ours.tokenizer is None else ours.tokenizer.decode
    written = bytes(elman.generate(ours, b"def add(", len(decode(new)), temperature=0))
    assert decode(new) == written
    without = theirs.generate(prompt, use_cache=False, **settings)[0].tolist()
    assert without == text
    assert read[30:] == list(range(length, length + 30))


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
    model, tokenizer = opened(small.folder), tokenizer_of(small.folder)
    prompts = ["def add(left, right):", "ret"]
    settings = {"do_sample": False, "max_new_tokens": 16, "eos_token_id": None}
    padded = tokenizer(prompts, return_tensors="pt", padding=True)
    assert padded.attention_mask[1, 0] == 0
    if not can_pad(model):
        with pytest.raises(UserError, match="padding on the left of a row: not with cell llama"):
            model.generate(**padded, **settings)
        return
    for beams in (1, 3):
        batch = model.generate(**padded, **settings, num_beams=beams)
        for row, prompt in zip(batch, prompts, strict=True):
            one = tokenizer(prompt, return_tensors="pt")
            alone = model.generate(**one, **settings, num_beams=beams)[0]
            assert torch.equal(row[-16:], alone[-16:])


def test_padding_that_a_state_would_have_read_is_refused(small: Exported) -> None:
    model, tokens = opened(small.folder), torch.randint(256, (2, 8))
    mask = torch.ones_like(tokens)
    mask[1, -2:] = 0
    # Behind the last token it changes nothing before it.
    with torch.no_grad():
        logits = model(tokens, attention_mask=mask).logits
        torch.testing.assert_close(logits[1:, :-2], model(tokens[1:, :-2]).logits)
    for call in (
        lambda: model.generate(tokens, attention_mask=mask, max_new_tokens=2),
        lambda: model(tokens, attention_mask=mask.roll(-1, 1)),
        lambda: model(tokens, attention_mask=mask[:, :5]),
    ):
        with pytest.raises(ValueError, match=r"^attention_mask: ") as raised:
            call()
        assert len(str(raised.value).splitlines()) == 1
    state = model(tokens).state
    with pytest.raises(ValueError, match=r"^state: has read all 8 tokens"):
        model.generate(tokens, state=state, max_new_tokens=2)


def test_a_beam_search_takes_the_states_of_its_beams_along(small: Exported) -> None:
    model = opened(small.folder)
    settings = {"do_sample": False, "max_new_tokens": 12, "num_beams": 4, "eos_token_id": None}
    prompts = torch.cat([tokens_of(b"def add("), tokens_of(b"return l")])
    carried = model.generate(prompts, **settings)
    assert torch.equal(carried, model.generate(prompts, use_cache=False, **settings))


def test_the_tokens_of_a_text_are_those_of_the_run(small: Exported) -> None:
    tokenizer, ours = tokenizer_of(small.folder), elman.load(small.run)
    for text in (TEXT, " ", "  a", "", "\x1e", "a\x1e\x1e b", "".join(map(chr, range(0x250)))):
        ids = tokenizer(text).input_ids
        data = text.encode()
        assert ids == (
            list(data) if ours.tokenizer is None else ours.tokenizer.encode(data).tolist()
        )
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    assert ends == set(tokenizer("\x1e").input_ids)
    assert tokenizer.decode(tokenizer("a\x1eb").input_ids, skip_special_tokens=True) == "ab"
    assert len(tokenizer) == len(ours.embedding)


def test_tokens_of_a_file_leave_with_the_model(
    exported: Callable[..., Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path))
    learned = elman.load(exported(*MODELS["bpe"]).run).tokenizer
    tree = json.loads(learned.definition)
    # As GPT-2's and others: a token of their own that ends a text, and composed characters.
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tree["added_tokens"] = [{"id": 270, "content": "<|endoftext|>", "special": True} | flags]
    tree["normalizer"] = {"type": "NFC"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(tree))
    small = exported(*E88, f"data.tokenizer={file}")
    test_the_tokens_of_a_text_are_those_of_the_run(small)
    tokenizer, back = tokenizer_of(small.folder), elman.load(small.folder)
    text = "Cafe\u0301<|endoftext|>\u011e"
    assert tokenizer(text).input_ids == back.tokenizer.encode(text.encode()).tolist()
    tokens = tokenizer(text, return_tensors="pt").input_ids
    assert torch.equal(opened(small.folder)(tokens).logits, elman.load(small.run)(tokens)[0])


def test_a_model_that_transformers_saves_is_read_back_by_both(
    small: Exported, tmp_path: Path
) -> None:
    model, place = opened(small.folder), tmp_path / "tuned"
    with torch.no_grad():
        model.model.embedding.mul_(1.5)
    model.save_pretrained(place, max_shard_size="100KB")
    assert (place / "model.safetensors.index.json").exists()
    if elman.load(small.run).tokenizer is not None:
        with pytest.raises(UserError, match=r"tokenizer\.json: cannot be read .*save_pretrained"):
            elman.load(place)
    tokenizer_of(small.folder).save_pretrained(place)
    tokens = torch.randint(256, (1, 20))
    expected = model(tokens).logits
    assert torch.equal(opened(place)(tokens).logits, expected)
    ours = elman.load(place)
    assert torch.equal(ours(tokens)[0], expected)
    test_the_tokens_of_a_text_are_those_of_the_run(Exported(small.run, place))
    opened(place).save_pretrained(tmp_path / "again")
    assert torch.equal(opened(tmp_path / "again")(tokens).logits, expected)
    for shard in place.glob("model-00001-*"):
        shard.unlink()
    with pytest.raises(UserError, match=r"model.safetensors.index.json: cannot be loaded"):
        elman.load(place)


def test_bf16_weights_compute_as_elman_does_in_bf16(small: Exported, tmp_path: Path) -> None:
    model = opened(small.folder, dtype=torch.bfloat16)
    tokens = torch.randint(256, (2, 20))
    expected = elman.load(small.run).to(torch.bfloat16)(tokens)[0]
    assert expected.dtype == torch.bfloat16
    assert torch.equal(model(tokens).logits, expected)
    model.save_pretrained(tmp_path / "bf16")
    assert torch.equal(opened(tmp_path / "bf16", dtype="auto")(tokens).logits, expected)


def test_a_trainer_trains_it_and_saves_what_elman_reads(small: Exported, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    tokens = torch.randint(256, (4, 24))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    losses = []
    for checkpointing in (False, True):
        model = opened(small.folder)
        settings = transformers.TrainingArguments(
            output_dir=str(tmp_path / f"trainer-{checkpointing}"),
            max_steps=2,
            per_device_train_batch_size=2,
            gradient_checkpointing=checkpointing,
            logging_steps=1,
            save_steps=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model=model,
            args=settings,
            train_dataset=rows,
            processing_class=tokenizer_of(small.folder),
        )
        trainer.train()
        assert model.model.activation_checkpointing == checkpointing
        losses.append([one["loss"] for one in trainer.state.log_history if "loss" in one])
        saved = elman.load(Path(settings.output_dir) / "checkpoint-2")
        assert torch.equal(saved(tokens)[0], model.eval()(tokens).logits)
        assert not torch.equal(saved.embedding, elman.load(small.run).embedding)
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]


@pytest.mark.parametrize("small", ["e88", "e1", "llama"], indirect=True)
def test_adapters_of_peft_train_merge_and_leave_for_elman(small: Exported, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, tokens = opened(small.folder), torch.randint(256, (2, 24))
    before = model(tokens, labels=tokens).loss
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_parameters=["in_proj", "out_proj"])
    )
    trained = [one for one in adapted.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for _ in range(3):
        adapted(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = adapted(tokens, labels=tokens).loss
    assert after < before
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = elman.load(tmp_path / "merged").loss(tokens)[0]
    torch.testing.assert_close(merged, opened(tmp_path / "merged")(tokens, labels=tokens).loss)
    torch.testing.assert_close(merged, after, rtol=1e-4, atol=1e-4)
