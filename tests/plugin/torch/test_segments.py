"""segments.py: where the pieces of flat buffers are."""

import pytest
from thinwire.engine import segments
from thinwire.engine.segments import Piece


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("sizes", [[1], [3, 0, 7], [128, 127, 129, 1], []])
def test_rank_major(world, sizes):
    pieces = [Piece(n, "norms and biases" if n == 7 else "") for n in sizes]
    for rank in range(world):
        table = segments.RankMajor(world, rank, pieces, 2)
        table.scatter(10000, 500)
        place = 0
        for owner in range(world):
            for index, n in enumerate(sizes):
                one = table.segments[owner * len(sizes) + index]
                assert (one.src or 0) == 10000 + 2 * place
                assert one.n_elems == n and one.tensor == index and one.unquantized == (n == 7)
                counts = (segments.C.c_size_t * world).from_address(one.counts)
                assert list(counts) == [n if r == owner else 0 for r in range(world)]
                if owner == rank:
                    assert one.dst == 500 + 2 * sum(sizes[:index])
                place += n
        table.gather(2000)
        assert all(one.src is None for one in table.segments)
        assert [one.dst for one in table.segments][:1] == [2000][: len(sizes)]


def test_plain():
    table = segments.Plain([Piece(5, ""), Piece(0, ""), Piece(2, "")], 4)
    table.reduce(100)
    assert [one.dst for one in table.segments] == [100, 120, 120]
    assert all(one.src is None and one.counts is None for one in table.segments)
