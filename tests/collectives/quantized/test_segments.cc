/* Segments with codecs of their own, or plain, and segments that are parts of one tensor. */
#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

const std::vector<size_t> sizes = {5000, 17, 3001, 1, 999, 2500, 64, 0};
const std::vector<std::string> own = {"", "plain", "int8:block=64,stochastic", "plain",
                                      "", "plain", "int8:block=64,stochastic", "plain"};

struct Asked {
    tw_coll_op_t op;
    const char *algo, *inner;
    tw_type_t type;
};

class Segments : public tw::Fixture
{
  protected:
    /* All ranks run one operation of the segments first ... first + n; returns every rank's results. */
    std::vector<std::vector<tw::Bytes>> run(tw::World &world, const Asked &asked, size_t first, size_t n)
    {
        std::vector<std::vector<tw::Bytes>> all((size_t)world.size());
        world.run([&](int rank) {
            tw::Case c;
            c.op = asked.op;
            c.algo = asked.algo;
            c.type = asked.type;
            c.codec = "int4:block=32,stochastic";
            c.inner = asked.inner;
            c.reduction = TW_COLL_MEAN;
            c.sizes = sizes;
            c.own = own;
            tw::RankBuffers mine;
            prepare(c, world.size(), rank, &mine);
            tw::RankCase request(c, &mine, 1);
            request.args.segments += first;
            request.args.n_segments = n;
            tw_transport_counters_t before, after;
            uint64_t planned = 0;
            EXPECT_EQ(tw_coll_planned_inter_node_bytes(world.coll(rank), &request.args, &planned), TW_OK);
            tw_transport_inter_node_counters(world.transport(rank), &before);
            EXPECT_EQ(tw_coll_run(world.coll(rank), &request.args), TW_OK);
            tw_transport_inter_node_counters(world.transport(rank), &after);
            EXPECT_EQ(after.bytes - before.bytes, planned) << asked.algo << ", rank " << rank;
            all[(size_t)rank] = mine.dst;
        });
        return all;
    }
};

const Asked all_asked[] = {
    {TW_COLL_ALLGATHER, "ring", "", TW_TYPE_BF16},
    {TW_COLL_ALLGATHER, "hierarchical", "", TW_TYPE_FP32},
    {TW_COLL_ALLGATHER, "direct", "", TW_TYPE_FP16},
    {TW_COLL_REDUCE_SCATTER, "one_hop", "", TW_TYPE_BF16},
    {TW_COLL_REDUCE_SCATTER, "two_hop", "", TW_TYPE_FP16},
    {TW_COLL_REDUCE_SCATTER, "two_hop", "int8", TW_TYPE_FP32},
    {TW_COLL_ALLREDUCE, "one_hop", "", TW_TYPE_FP16},
    {TW_COLL_ALLREDUCE, "two_hop", "", TW_TYPE_BF16},
    {TW_COLL_ALLREDUCE, "two_hop", "int8", TW_TYPE_FP16},
};

const std::vector<std::vector<int>> grids = {{1}, {1, 1, 1}, {2, 2}, {3}, {3, 1, 2}};

/* Together they end as each alone. */
TEST_F(Segments, EachHasItsOwnCodec)
{
    set_env("TW_COLL_CHUNK", "1K");
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        for (const Asked &asked : all_asked) {
            auto together = run(world, asked, 0, sizes.size());
            for (size_t s = 0; s < sizes.size(); s++) {
                auto alone = run(world, asked, s, 1);
                for (size_t r = 0; r < together.size(); r++) {
                    ASSERT_TRUE(together[r][s] == alone[r][s])
                        << tw_coll_op_name(asked.op) << " " << asked.algo << " segment " << s << ", rank "
                        << r << " of " << together.size();
                }
            }
        }
    }
}

/* What is plain has no more error than rounding sums to its type, on their way and at the end; gathered,
 * none. */
TEST_F(Segments, PlainOnesLoseNothing)
{
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        int w = world.size();
        for (const Asked &asked : all_asked) {
            auto got = run(world, asked, 0, sizes.size());
            tw::Case c;
            c.op = asked.op;
            c.type = asked.type;
            c.reduction = TW_COLL_MEAN;
            c.sizes = sizes;
            for (size_t s = 0; s < sizes.size(); s++) {
                if (own[s] != "plain") {
                    continue;
                }
                std::vector<double> mean = tw::reduced(c, w, s);
                for (int r = 0; r < w; r++) {
                    std::vector<float> mine = tw::to_floats(c.type, got[(size_t)r][s]);
                    size_t first = asked.op == TW_COLL_REDUCE_SCATTER ? tw::first_of(c, w, s, r) : 0;
                    tw::Bytes gathered;
                    for (int q = 0; q < w && asked.op == TW_COLL_ALLGATHER; q++) {
                        tw::Bytes shard =
                            tw::plain_tensor(c, q, s, tw::first_of(c, w, s, q), tw::count_of(c, w, s, q));
                        gathered.insert(gathered.end(), shard.begin(), shard.end());
                    }
                    if (asked.op == TW_COLL_ALLGATHER) {
                        ASSERT_TRUE(got[(size_t)r][s] == gathered) << asked.algo << " segment " << s;
                        continue;
                    }
                    double bound =
                        3.02 * 3 * (tw::type_epsilon(c.type) + w * std::ldexp(1, -24)) + std::ldexp(w, -24);
                    for (size_t i = 0; i < mine.size(); i++) {
                        ASSERT_NEAR(mine[i], mean[first + i], bound)
                            << tw_coll_op_name(asked.op) << " " << asked.algo << " segment " << s
                            << " element " << i;
                    }
                }
            }
        }
    }
}

/* A tensor in two segments, cut at a block, rounds as it does in one, and in small chunks as in large ones,
 * of which sums are made 8,192 elements at a time. */
TEST_F(Segments, RoundingGoesOnInTheNextSegment)
{
    constexpr size_t CUT = 3 << 13, REST = 20000, N = CUT + REST;
    const Asked asked[] = {{TW_COLL_ALLGATHER, "ring", "", TW_TYPE_BF16},
                           {TW_COLL_REDUCE_SCATTER, "one_hop", "", TW_TYPE_BF16},
                           {TW_COLL_REDUCE_SCATTER, "two_hop", "", TW_TYPE_BF16},
                           {TW_COLL_REDUCE_SCATTER, "two_hop", "int8", TW_TYPE_BF16}};
    for (const Asked &a : asked) {
        std::vector<std::vector<tw::Bytes>> whole(4), cut(4);
        for (bool in_two : {false, true}) {
            set_env("TW_COLL_CHUNK", in_two ? "2K" : "1M");
            tw::World world(tw::nodes_of({2, 2}));
            world.run([&](int rank) {
                /* rank 0 owns what is before the cut, rank 3 the rest */
                std::vector<size_t> counts[3] = {{CUT, 0, 0, REST}, {CUT, 0, 0, 0}, {0, 0, 0, REST}};
                tw::Case c;
                c.op = a.op;
                c.algo = a.algo;
                c.type = a.type;
                c.codec = "int4:block=64,stochastic";
                c.inner = a.inner;
                c.sizes = {N};
                c.counts = {counts[0]};
                tw::RankBuffers mine;
                prepare(c, 4, rank, &mine);
                tw::RankCase request(c, &mine, 1);
                tw_coll_segment_t one = request.segments[0], two[2] = {one, one};
                size_t bytes = CUT * tw_type_bytes(a.type);
                for (int s = 0; s < 2; s++) {
                    two[s].n_elems = s == 0 ? CUT : REST;
                    two[s].counts = counts[s + 1].data();
                    two[s].first_elem = s == 0 ? 0 : CUT;
                }
                if (a.op != TW_COLL_ALLGATHER || rank == 0) {
                    two[1].src = (const char *)one.src + bytes;
                }
                if (a.op != TW_COLL_REDUCE_SCATTER || rank == 0) {
                    two[1].dst = (char *)one.dst + bytes;
                }
                request.args.segments = in_two ? two : &one;
                request.args.n_segments = in_two ? 2 : 1;
                EXPECT_EQ(tw_coll_run(world.coll(rank), &request.args), TW_OK);
                (in_two ? cut : whole)[(size_t)rank] = mine.dst;
            });
        }
        for (size_t r = 0; r < 4; r++) {
            EXPECT_TRUE(whole[r] == cut[r]) << tw_coll_op_name(a.op) << " " << a.algo << ", rank " << r;
        }
    }
}

/* factor comes on top of the mean. */
TEST_F(Segments, AFactorMultipliesTheResult)
{
    for (const char *algo : {"one_hop", "two_hop"}) {
        tw::World world(tw::nodes_of({2, 2}));
        world.run([&](int rank) {
            std::vector<float> src(1000, (float)(rank + 1)), dst(1000);
            tw_coll_segment_t segments[2] = {};
            for (int s = 0; s < 2; s++) {
                segments[s].src = src.data() + 500 * s;
                segments[s].dst = dst.data() + 500 * s;
                segments[s].n_elems = 500;
                segments[s].unquantized = s;
            }
            tw_quant_codec_t codec = tw::parse_codec("int8");
            tw_coll_args_t args = {};
            args.op = TW_COLL_ALLREDUCE;
            args.type = TW_TYPE_FP32;
            args.segments = segments;
            args.n_segments = 2;
            args.reduction = TW_COLL_MEAN;
            args.factor = 0.5f;
            args.codec = &codec;
            args.force_codec = 1;
            args.algo = algo;
            EXPECT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
            EXPECT_NEAR(dst[3], 1.25, 0.02);
            EXPECT_EQ(dst[700], 1.25f);
        });
    }
}

} // namespace
