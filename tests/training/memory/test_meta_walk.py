"""What the walk on the meta device answers by a rule is what PyTorch answers there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from elman.training.memory.meta_walk import RULES, MetaWalk, by_rule

aten = torch.ops.aten
BF16, F64 = torch.bfloat16, torch.float64


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor without storage."""
    return torch.empty(shape, dtype=dtype, device="meta")


# Layouts of a pair: alike, one turned, one a slice, broadcast either way, neither of whole shape.
PAIRS = {
    "alike": (meta(3, 4, 5), meta(3, 4, 5)),
    "both-turned": (meta(4, 3, 5).transpose(0, 1), meta(4, 3, 5).transpose(0, 1)),
    "first-turned": (meta(4, 3, 5).transpose(0, 1), meta(3, 4, 5)),
    "second-turned": (meta(3, 4, 5), meta(4, 3, 5).transpose(0, 1)),
    "sliced": (meta(3, 4, 9)[..., 2:7], meta(3, 4, 9)[..., 2:7]),
    "number": (meta(4, 3, 5).transpose(0, 1), meta()),
    "number-of-another-dtype": (meta(3, 4), meta(dtype=F64)),
    "row": (meta(3, 4, 5), meta(5)),
    "row-first": (meta(5), meta(5, 4).t()),
    "outer": (meta(3, 1), meta(4)),
    "inner-axes": (meta(2, 1, 7, 3, 5).transpose(2, 3), meta(2, 1, 3, 7, 1)),
    "expanded": (meta(3, 1, 5).expand(3, 4, 5), meta(5, 4, 3).permute(2, 1, 0)),
    "wider": (meta(3, 4, dtype=F64), meta(4, 3).t()),
    "narrow": (meta(3, 4, dtype=BF16), meta(3, 4, dtype=BF16)),
}
BINARY = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor]
BACKWARD = [aten.tanh_backward.default, aten.sigmoid_backward.default]
UNARY = [
    *(aten.abs.default, aten.exp.default, aten.neg.default, aten.reciprocal.default),
    *(aten.rsqrt.default, aten.sgn.default, aten.sigmoid.default, aten.sqrt.default),
    *(aten.tanh.default, aten.softplus.default, aten.silu.default),
    *(aten.cos.default, aten.log.default, aten.sin.default),
    *(aten.clone.default, aten.empty_like.default, aten.ones_like.default),
    aten.zeros_like.default,
]
IN_PLACE = [aten.exp_.default, aten.neg_.default, aten.sigmoid_.default, aten.tanh_.default]
VIEWS = {
    "whole": meta(3, 4, 5),
    "turned": meta(5, 4, 3).permute(2, 1, 0),
    "sliced": meta(3, 4, 9)[..., 2:7],
    "expanded": meta(3, 1, 5).expand(3, 4, 5),
}
SCORES, TARGETS = meta(6, 9), meta(6, dtype=torch.long)
IMAGES = meta(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)

CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    f"{op}-{name}": (op, pair) for op in BINARY for name, pair in PAIRS.items()
}
for name in ("alike", "first-turned", "second-turned", "sliced", "narrow"):
    CASES |= {f"{op}-{name}": (op, PAIRS[name]) for op in BACKWARD}
    CASES[f"softplus_backward-{name}"] = aten.softplus_backward.default, (*PAIRS[name], 1, 20)
for name, view in VIEWS.items():
    CASES |= {f"{op}-{name}": (op, (view,)) for op in UNARY}
    CASES |= {
        f"{op}-{name}": (op, (view, *rest))
        for op, *rest in (
            (aten.mul.Scalar, 2),
            (aten.div.Scalar, 2),
            (aten.pow.Tensor_Scalar, 2),
            (aten.rsub.Scalar, 1),
            (aten.clamp.default, 0, 1),
            (aten.clamp_min.default, 0),
            (aten.remainder.Scalar, 2),
            (aten.eq.Scalar, 0),
            (aten.ge.Scalar, 0),
            (aten.gt.Scalar, 0),
            (aten.le.Scalar, 0.5),
            (aten.lt.Scalar, 0.5),
            (aten.eq.Tensor, meta(3, 4, 5)),
            (aten.polar.default, meta(3, 4, 5)),
            (aten.cumsum.default, -1),
            (aten.tril.default,),
            (aten.triu.default, 1),
            (aten.flip.default, [1]),
            (aten.lerp.Tensor, meta(3, 4, 5), meta(5)),
            (aten.addcmul.default, meta(3, 4, 5), meta(3, 1, 5)),
        )
    }
    for dims, keep in (([-1], True), ([0, 2], False), ([1], False)):
        CASES[f"mean-{name}-{dims}-{keep}"] = aten.mean.dim, (view, dims, keep)
        CASES[f"sum-{name}-{dims}-{keep}"] = aten.sum.dim_IntList, (view, dims, keep)
        length = aten.linalg_vector_norm.default
        CASES[f"length-{name}-{dims}-{keep}"] = length, (view, 2, dims, keep)
    for axes in ([5], [4, 5]):
        norm = aten.native_layer_norm.default
        CASES[f"layer-norm-{name}-{axes}"] = norm, (view, axes, meta(*axes), None, 1e-5)
    for dim in (0, -1):
        CASES[f"cat-{name}-{dim}"] = aten.cat.default, ([view, meta(3, 4, 5)], dim)
        CASES[f"stack-{name}-{dim}"] = aten.stack.default, ([view, view], dim)
CASES |= {f"{op}": (op, (meta(4, 4),)) for op in [*IN_PLACE, aten.tril_.default]}
NO = (None, None)
ROWS, FLAGS = meta(3, 4), meta(3, 4, dtype=torch.bool)
CASES |= {
    **{
        f"{op}": (op, (ROWS, ROWS)) for op in (aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor)
    },
    "addcmul_": (aten.addcmul_.default, (ROWS, ROWS, meta(4))),
    "masked_fill_": (aten.masked_fill_.Scalar, (ROWS, FLAGS, 0)),
    "logical_and_": (aten.logical_and_.default, (FLAGS, FLAGS)),
    "sum-integers": (aten.sum.dim_IntList, (FLAGS, [0])),
    "bmm": (aten.bmm.default, (meta(2, 3, 4), meta(2, 5, 4).transpose(1, 2))),
    "baddbmm": (aten.baddbmm.default, (meta(2, 3, 5), meta(2, 3, 4), meta(2, 4, 5))),
    "convolution": (
        aten.convolution.default,
        (meta(2, 9, 6).transpose(1, 2), meta(6, 1, 4), None, [1], [3], [1], False, [0], 6),
    ),
    "convolution-strided": (
        aten.convolution.default,
        (meta(2, 6, 19), meta(8, 3, 4), meta(8), [2], [0], [3], False, [0], 2),
    ),
    "convolution-transposed": (
        aten.convolution.default,
        (meta(2, 6, 9), meta(6, 1, 4), None, [1], [0], [1], True, [0], 6),
    ),
    **{
        f"convolution-backward-{wanted}": (
            aten.convolution_backward.default,
            (
                *(meta(2, 6, 12), meta(2, 9, 6).transpose(1, 2), meta(6, 1, 4)),
                *([6], [1], [3], [1], False, [0], 6, wanted),
            ),
        )
        for wanted in ([True, True, True], [True, True, False], [False, True, True])
    },
    "mul-complex": (
        aten.mul.Tensor,
        (meta(3, 4, dtype=torch.complex64), meta(4, 3, dtype=torch.complex64).t()),
    ),
    "mul-complex-and-real": (aten.mul.Tensor, (meta(3, dtype=torch.complex64), meta(3))),
    "mul-real-and-complex": (aten.mul.Tensor, (meta(3), meta(3, dtype=torch.complex64))),
    "polar-wide": (aten.polar.default, (meta(3, dtype=F64), meta(4, 1, dtype=F64))),
    "power-of-number": (aten.pow.Scalar, (1e4, meta(3, 4))),
    "eq-integers": (aten.eq.Scalar, (meta(3, dtype=torch.long), 1)),
    "group-norm": (
        aten.native_group_norm.default,
        (meta(6, 8), meta(8), meta(8), 6, 8, 1, 2, 1e-5),
    ),
    "group-norm-turned": (
        aten.native_group_norm.default,
        (meta(5, 6, 8).transpose(1, 2), None, None, 5, 8, 6, 2, 1e-5),
    ),
    "group-norm-narrow": (
        aten.native_group_norm.default,
        (meta(6, 8, dtype=BF16), meta(8), meta(8), 6, 8, 1, 2, 1e-5),
    ),
    "layer-norm-narrow": (aten.native_layer_norm.default, (meta(3, 4, dtype=BF16), [4], *NO, 0)),
    "slice-backward": (aten.slice_backward.default, (meta(3, 2), [3, 4], 1, 0, 2, 1)),
    "select-backward": (aten.select_backward.default, (meta(3), [3, 4], 1, 0)),
    "exp-integers": (aten.exp.default, (meta(3, dtype=torch.long),)),
    "mul-integers": (aten.mul.Tensor, (meta(3, dtype=torch.long), meta(3, dtype=torch.long))),
    "abs-complex": (aten.abs.default, (meta(3, dtype=torch.complex64),)),
    "triu-bool": (aten.triu.default, (meta(4, 4, dtype=torch.bool), 1)),
    "mean-of-all": (aten.mean.dim, (meta(3, 4), [])),
    "cat-images": (aten.cat.default, ([IMAGES, IMAGES], 1)),
    "cat-in-order": (aten.cat.default, ([meta(2, 4, 3, 5).transpose(1, 2)] * 2, 1)),
    "cat-channels-inmost": (aten.cat.default, ([meta(2, 4, 5, 3).permute(0, 3, 1, 2)] * 2, 1)),
    "cat-one-channel": (aten.cat.default, ([meta(2, 1, 4, 5), meta(2, 1, 5, 4).mT], 1)),
    "stack-films": (aten.stack.default, ([meta(2, 4, 5, 3).permute(0, 3, 1, 2)] * 2, 2)),
    "stack-of-no-channels": (aten.stack.default, ([meta(2, 4, 5, 3).transpose(1, 3)] * 2, 1)),
    "cat-of-two-dtypes": (aten.cat.default, ([meta(3), meta(2, dtype=F64)],)),
    "cat-with-nothing": (aten.cat.default, ([meta(0), meta(3, 4)],)),
    "where": (aten.where.self, (meta(3, 4, dtype=torch.bool), meta(3, 4), meta())),
    "where-turned": (aten.where.self, (meta(4, dtype=torch.bool), meta(4, 3).t(), meta(3, 4))),
    "embedding": (aten.embedding.default, (meta(9, 5), meta(2, 6, dtype=torch.long))),
    "embedding-turned": (aten.embedding.default, (meta(5, 9).t(), meta(6, 2).long().t())),
    "embedding-backward": (
        aten.embedding_dense_backward.default,
        (meta(2, 6, 5), meta(2, 6, dtype=torch.long), 9, -1, False),
    ),
    "addmm": (aten.addmm.default, (meta(5), meta(3, 4), meta(5, 4).t())),
    "mm": (aten.mm.default, (meta(4, 3).t(), meta(4, 5))),
    "mv": (aten.mv.default, (meta(4, 3).t(), meta(4))),
    "dot": (aten.dot.default, (meta(4), meta(4))),
    "log_softmax": (aten._log_softmax.default, (SCORES, -1, False)),
    "log_softmax-backward": (
        aten._log_softmax_backward_data.default,
        (SCORES, SCORES, -1, torch.float32),
    ),
    "softmax-backward": (aten._softmax_backward_data.default, (SCORES, SCORES, 1, torch.float32)),
    "nll-mean": (aten.nll_loss_forward.default, (SCORES, TARGETS, None, 1, -100)),
    "nll-none": (aten.nll_loss_forward.default, (SCORES, TARGETS, None, 0, -100)),
    "nll-backward": (
        aten.nll_loss_backward.default,
        (meta(), SCORES, TARGETS, None, 1, -100, meta()),
    ),
}


RANGES: list[tuple[Any, tuple[int, ...]]] = [
    (aten.arange.start, (3, 11)),
    (aten.arange.start, (4, 4)),
    (aten.arange.start_step, (0, 9, 2)),
    (aten.arange.start_step, (9, 0, -3)),
]


def described(results: Any) -> list[tuple[Any, ...]]:
    """Return what can be told of tensors without values."""
    tensors = results if isinstance(results, tuple) else (results,)
    return [
        () if one is None else (one.shape, one.stride(), one.dtype, one.device) for one in tensors
    ]


@pytest.mark.parametrize("case", CASES)
def test_a_rule_answers_as_pytorch_does(case: str) -> None:
    op, args = CASES[case]
    made, real = by_rule(op, args, {}), op(*args)
    if made is not None:
        assert described(made) == described(real)
        assert (made is args[0]) == (real is args[0])
    with MetaWalk():
        assert described(op(*args)) == described(real)


def test_every_rule_holds_for_one_of_these_cases() -> None:
    answered = {op for op, args in CASES.values() if by_rule(op, args, {}) is not None}
    assert answered | {op for op, _ in RANGES} == set(RULES)


@pytest.mark.parametrize(("op", "args"), RANGES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.long])
def test_a_range_is_laid_out_as_asked(op: Any, args: Any, dtype: torch.dtype) -> None:
    asked = {"dtype": dtype, "device": torch.device("meta")}
    made = by_rule(op, args, asked)
    assert made is not None
    assert described(made) == described(op(*args, **asked))
    for unsaid in asked:
        assert by_rule(op, args, asked | {unsaid: None}) is None


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.preserve_format], ids=str)
def test_a_copy_is_laid_out_as_asked(view: str, layout: torch.memory_format) -> None:
    op, asked = aten.clone.default, {"memory_format": layout}
    made = by_rule(op, (VIEWS[view],), asked)
    assert made is not None
    assert described(made) == described(op(VIEWS[view], **asked))


def test_a_tensor_like_another_but_for_its_dtype_is_left_to_pytorch() -> None:
    assert by_rule(aten.ones_like.default, (ROWS,), {"dtype": torch.long}) is None
    assert by_rule(aten.zeros_like.default, (ROWS,), {"device": torch.device("cpu")}) is None


def test_tensors_with_values_are_computed() -> None:
    with MetaWalk():
        assert torch.equal(torch.ones(2, 2).tanh_(), torch.full((2, 2), 1.0).tanh())
        assert torch.cat([torch.ones(2), torch.zeros(1)]).tolist() == [1, 1, 0]
        assert (torch.ones(2, 3) @ torch.ones(3)).tolist() == [3, 3]


def test_no_dtype_is_assumed_of_a_softmax_that_widens() -> None:
    narrow = meta(6, 9, dtype=BF16)
    assert by_rule(aten._log_softmax.default, (narrow, 1, True), {}) is None
    widened = aten._log_softmax_backward_data.default
    assert by_rule(widened, (SCORES, SCORES, 1, BF16), {}) is None
