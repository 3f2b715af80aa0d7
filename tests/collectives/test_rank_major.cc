/* Rank-major buffers: one segment per (rank, tensor). The same bits as one segment per tensor, whose shards
 * lie elsewhere. */
#include <algorithm>

#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

using RankMajor = tw::Fixture;

const std::vector<size_t> sizes = {10007, 3, 0, 700, 1};

/* A unit's elements, once tensor by tensor and once rank by rank, and what an operation is told of them. */
struct Unit {
    int world, rank;
    std::vector<float> by_tensor, by_rank;
    std::vector<tw_coll_segment_t> tensors, pairs;
    std::vector<size_t> counts; /* [pairs][world] */

    size_t n_pairs() const
    {
        return (size_t)world * sizes.size();
    }
    size_t n(int r, size_t t) const
    {
        return tw_coll_shard_elems(sizes[t], world, r);
    }
    size_t first(int r, size_t t) const
    {
        return tw_coll_shard_offset(sizes[t], world, r);
    }
    /* body(rank, tensor, where in by_tensor, where in by_rank) */
    void for_all(const std::function<void(int, size_t, size_t, size_t)> &body) const
    {
        size_t at = 0;
        for (int r = 0; r < world; r++) {
            size_t start = 0;
            for (size_t t = 0; t < sizes.size(); t++) {
                body(r, t, start + first(r, t), at);
                at += n(r, t);
                start += sizes[t];
            }
        }
    }
    Unit(int the_world, int the_rank) : world(the_world), rank(the_rank)
    {
        size_t total = 0;
        for (size_t n_elems : sizes) {
            total += n_elems;
        }
        by_tensor.resize(total);
        by_rank.resize(total);
        counts.resize(n_pairs() * (size_t)world);
        for (size_t i = 0; i < total; i++) {
            by_tensor[i] = (float)std::sin((double)(i + 1) * (rank + 1));
        }
        for_all([&](int r, size_t t, size_t from, size_t to) {
            std::copy_n(by_tensor.data() + from, n(r, t), by_rank.data() + to);
        });
    }
    /* In place, as an all-gather or a reduce-scatter has it. */
    void describe(tw_coll_op_t op)
    {
        auto place = [op](float *at, tw_coll_segment_t *segment) {
            if (op == TW_COLL_ALLGATHER) {
                segment->dst = at;
            } else {
                segment->src = at;
            }
        };
        size_t start = 0;
        for (size_t t = 0; t < sizes.size(); t++) {
            tw_coll_segment_t segment = {};
            place(by_tensor.data() + start, &segment);
            segment.n_elems = sizes[t];
            segment.tensor = (uint32_t)t;
            tensors.push_back(segment);
            start += sizes[t];
        }
        for_all([&](int r, size_t t, size_t, size_t at) {
            tw_coll_segment_t segment = {};
            size_t *mine = &counts[pairs.size() * (size_t)world];
            mine[r] = n(r, t);
            place(by_rank.data() + at, &segment);
            segment.n_elems = n(r, t);
            segment.counts = mine;
            segment.tensor = (uint32_t)t;
            segment.first_elem = first(r, t);
            pairs.push_back(segment);
        });
    }
};

void expect_same_bits(tw_coll_op_t op, const char *algo, const char *codec_text)
{
    tw::World world(tw::nodes_of({2, 1}));
    tw_quant_codec_t codec = tw::parse_codec(codec_text[0] ? codec_text : "int8");
    world.run([&](int rank) {
        Unit unit(world.size(), rank);
        tw_coll_args_t args = {};
        unit.describe(op);
        args.op = op;
        args.type = TW_TYPE_FP32;
        args.codec = codec_text[0] ? &codec : nullptr;
        args.force_codec = 1;
        args.algo = algo;
        args.seed = 7;
        args.segments = unit.tensors.data();
        args.n_segments = unit.tensors.size();
        ASSERT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
        args.segments = unit.pairs.data();
        args.n_segments = unit.pairs.size();
        ASSERT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
        unit.for_all([&](int r, size_t t, size_t in_tensor, size_t in_rank) {
            if (op == TW_COLL_ALLGATHER || r == rank) {
                const float *shard = unit.by_tensor.data() + in_tensor;
                EXPECT_TRUE(std::equal(shard, shard + unit.n(r, t), unit.by_rank.data() + in_rank))
                    << tw_coll_op_name(op) << " " << codec_text << ": shard " << r << " of tensor " << t
                    << " on rank " << rank;
            }
        });
    });
}

TEST_F(RankMajor, Plain)
{
    expect_same_bits(TW_COLL_ALLGATHER, "ring", "");
    expect_same_bits(TW_COLL_REDUCE_SCATTER, "direct", "");
}

TEST_F(RankMajor, Quantized)
{
    for (const char *codec : {"int8", "int4:block=32,stochastic"}) {
        expect_same_bits(TW_COLL_ALLGATHER, nullptr, codec);
        expect_same_bits(TW_COLL_REDUCE_SCATTER, "one_hop", codec);
        expect_same_bits(TW_COLL_REDUCE_SCATTER, "two_hop", codec);
    }
}

} // namespace
