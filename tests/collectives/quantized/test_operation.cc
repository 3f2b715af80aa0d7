/* Where the tensors of a quantized operation lie, and the seeds of what is rounded. */
#include <set>

#include "collectives/quantized/operation.h"
#include "tests/common/fixture.h"

namespace
{

using Qop = tw::Fixture;

constexpr size_t COUNTS[] = {3, 0, 5, 1, 0, 7, 2, 4};
constexpr size_t ELEM_BYTES = 2;

class Place : public tw::Fixture
{
  protected:
    /* The address that an operation reads, or writes, element `at` of the whole tensor at. */
    const char *src_of(const tw_grid_tensor_t &place, size_t at) const
    {
        return place.src + (at - place.src_first) * ELEM_BYTES;
    }
    char *dst_of(const tw_grid_tensor_t &place, size_t at) const
    {
        return place.dst + (at - place.dst_first) * ELEM_BYTES;
    }
    tw_coll_segment_t segment_of(const void *src, void *dst) const
    {
        tw_coll_segment_t segment = {};
        segment.src = src;
        segment.dst = dst;
        segment.n_elems = 22;
        segment.counts = COUNTS;
        segment.tensor = 9;
        return segment;
    }

    char whole[22 * ELEM_BYTES] = {}, other[22 * ELEM_BYTES] = {}, shard[7 * ELEM_BYTES] = {};
};

TEST_F(Place, EveryRankFindsItsShard)
{
    size_t first = 0;
    for (int rank = 0; rank < 8; first += COUNTS[rank++]) {
        tw_coll_segment_t segment = segment_of(shard, whole);
        tw_grid_tensor_t place;
        tw_grid_place(&segment, TW_COLL_ALLGATHER, rank, ELEM_BYTES, &place);
        EXPECT_EQ(src_of(place, first), shard);
        EXPECT_EQ(dst_of(place, first), whole + first * ELEM_BYTES);
        EXPECT_EQ(dst_of(place, 0), whole);
        EXPECT_EQ(place.tensor, 9u);

        segment = segment_of(nullptr, whole); /* in place: the own shard is where it belongs */
        tw_grid_place(&segment, TW_COLL_ALLGATHER, rank, ELEM_BYTES, &place);
        EXPECT_EQ(src_of(place, first), whole + first * ELEM_BYTES);

        segment = segment_of(whole, shard);
        tw_grid_place(&segment, TW_COLL_REDUCE_SCATTER, rank, ELEM_BYTES, &place);
        EXPECT_EQ(src_of(place, 21), whole + 21 * ELEM_BYTES);
        EXPECT_EQ(dst_of(place, first), shard);

        segment = segment_of(whole, nullptr);
        tw_grid_place(&segment, TW_COLL_REDUCE_SCATTER, rank, ELEM_BYTES, &place);
        EXPECT_EQ(dst_of(place, first), whole + first * ELEM_BYTES);

        segment = segment_of(other, whole);
        tw_grid_place(&segment, TW_COLL_ALLREDUCE, rank, ELEM_BYTES, &place);
        EXPECT_EQ(src_of(place, first), other + first * ELEM_BYTES);
        EXPECT_EQ(dst_of(place, first), whole + first * ELEM_BYTES);

        segment = segment_of(nullptr, whole);
        tw_grid_place(&segment, TW_COLL_ALLREDUCE, rank, ELEM_BYTES, &place);
        EXPECT_EQ(src_of(place, first), whole + first * ELEM_BYTES);
    }
}

/* In a reduction no two contributions round alike; what is gathered is rounded as its owner's tensor would be
 * alone. */
TEST_F(Qop, SeedsOfContributionsDiffer)
{
    for (tw_coll_op_t op : {TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
        std::set<uint64_t> seeds;
        for (uint64_t seed : {0, 1, 2, 1000}) {
            for (int i = 0; i < 64; i++) {
                seeds.insert(tw_qop_seed(TW_SEED_RANK, op, seed, i));
                seeds.insert(tw_qop_seed(TW_SEED_NODE, op, seed, i));
            }
        }
        EXPECT_EQ(seeds.size(), 4u * 64 * 2);
    }
    for (int rank = 0; rank < 8; rank++) {
        EXPECT_EQ(tw_qop_seed(TW_SEED_RANK, TW_COLL_ALLGATHER, 77, rank), 77u);
    }
}

} // namespace
