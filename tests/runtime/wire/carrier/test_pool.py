"""A buffer is used again only when nobody holds it."""

from __future__ import annotations

import torch

from weft.runtime.wire.carrier import pool as pools
from weft.runtime.wire.carrier.pool import Pool


def address(view: memoryview) -> int:
    return torch.frombuffer(view, dtype=torch.uint8).data_ptr()


def test_a_tensor_keeps_the_memory_that_it_shares() -> None:
    pool = Pool()
    view = pool.take(100_000)
    tensor = torch.frombuffer(view[:40_000], dtype=torch.float32)
    tensor.fill_(7.0)
    first = address(view)
    del view
    other = pool.take(100_000)
    assert address(other) != first
    other[:] = bytes(100_000)
    assert bool((tensor == 7.0).all())
    del tensor
    assert address(pool.take(100_000)) == first


def test_a_pool_has_a_limit() -> None:
    pool = Pool()
    held = [pool.take(pools.SMALLEST) for _ in range(3 * pools.MAX_BUFFERS)]
    assert pool.bytes == pools.MAX_BUFFERS * pools.SMALLEST
    held += [pool.take(pools.MAX_BYTES), pool.take(16)]
    assert pool.bytes == pools.MAX_BUFFERS * pools.SMALLEST
    assert len({address(view) for view in held}) == len(held)
    pool.clear()
    assert pool.bytes == 0


def test_nothing_needs_no_memory() -> None:
    assert len(Pool().take(0)) == 0
