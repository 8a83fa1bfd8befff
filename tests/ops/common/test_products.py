"""Products over batch and time of numbers in bf16: their sums are wider.

Shape legend: b batch, t time, c any channels.
"""

from __future__ import annotations

import pytest
import torch

from elman.ops.common.products import multiply, outer, shifted

BF16 = torch.bfloat16


def test_a_long_sum_of_bf16_numbers_loses_none_of_them() -> None:
    """The original summed weight gradients in bf16, where 256 + 1 is 256."""
    ones_btc = torch.ones(3, 1501, 2, dtype=BF16)
    sums = outer(ones_btc, ones_btc, torch.float32)
    assert sums.dtype == torch.float32
    assert torch.equal(sums, torch.full((2, 2), 4503.0))


def test_each_sum_has_its_row_of_the_left_and_its_column_of_the_right() -> None:
    torch.manual_seed(0)
    left_btc, right_btc = torch.randn(2, 5, 3).double(), torch.randn(2, 5, 4).double()
    exact = torch.einsum("btl,btr->lr", left_btc, right_btc)
    torch.testing.assert_close(outer(left_btc, right_btc, torch.float64), exact)


@pytest.mark.parametrize("to", [BF16, torch.float32])
def test_a_product_is_as_wide_as_where_it_goes(to) -> None:
    left, right = torch.eye(2, dtype=BF16), torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=BF16)
    found = multiply(left, right, torch.full((2, 2), torch.nan, dtype=to))
    assert found.dtype == to
    assert torch.equal(found.float(), right.float())


def test_the_state_before_a_step_is_zero_where_a_row_begins_anew() -> None:
    y_bti, h_bi = torch.full((2, 3, 1), torch.nan), torch.full((2, 1), 5.0)
    resets_bt = torch.tensor([[False, True, True], [True, True, True]])
    before = shifted(y_bti, h_bi, resets_bt)
    assert before.flatten().tolist() == [5.0, 0.0, 0.0, 0.0, 0.0, 0.0]
