"""Sums in one fixed binary tree, whatever the number of ranks that share its leaves.

Floating point sums depend on their order. Here neighbors are added first: the leaves 0 and 1,
2 and 3, then the sums of these pairs, and so on. A rank that has an aligned run of 2^m leaves
computes a subtree, so ranks change who adds, and never what is added to what.

Shape legend: n numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def summed(leaves: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors in the tree's order; it overwrites the first one.

    Args:
        leaves: Tensors of one shape; their number is a power of two.
    """
    left = list(leaves)
    assert len(left) & (len(left) - 1) == 0, "a binary tree"
    while len(left) > 1:
        left = [one.add_(other) for one, other in zip(left[::2], left[1::2], strict=True)]
    return left[0]


class RunningTree:
    """Adds leaves in the same order as they arrive one by one, and keeps few partial sums.

    Args:
        buffers: Memory for the leaves, each of n numbers; log2(leaves) + 1 suffice.
    """

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._free = list(buffers)
        self._sums: list[tuple[int, Tensor]] = []

    def leaf(self) -> Tensor:
        """Return memory for the next leaf."""
        return self._free.pop()

    def add(self, leaf_n: Tensor) -> None:
        """Add a leaf whose memory came from :meth:`leaf`."""
        height = 0
        while self._sums and self._sums[-1][0] == height:
            _, left_n = self._sums.pop()
            left_n.add_(leaf_n)
            self._free.append(leaf_n)
            leaf_n, height = left_n, height + 1
        self._sums.append((height, leaf_n))

    def take(self) -> Tensor:
        """Return the sum; give it back with :meth:`give_back`."""
        (only,) = self._sums
        self._sums.clear()
        return only[1]

    def give_back(self, buffer_n: Tensor) -> None:
        """Make the memory of a sum free."""
        self._free.append(buffer_n)

    def clear(self) -> None:
        """Forget every leaf so far."""
        self._free.extend(buffer_n for _, buffer_n in self._sums)
        self._sums.clear()
