/* What is read off the flows of the quantized algorithms is what they send. */
#include <algorithm>

#include "collectives/communicator.h"
#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

constexpr size_t N_ELEMS = 840 * 128; /* the same whole blocks for every rank of the worlds here */

class QuantCost : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:alpha=50us");
        set_env("TW_COLL_CHECK", "n");
        codec = tw::parse_codec("int4:block=32");
        inner = tw::parse_codec("int8:block=32");
        segment.n_elems = N_ELEMS;
        segment.src = segment.dst = &codec; /* neither is touched: nothing is posted */
        args.type = TW_TYPE_BF16;
        args.segments = &segment;
        args.n_segments = 1;
        args.codec = &codec;
        args.inner_codec = nullptr;
    }
    tw_case_t case_of(const tw_coll_t *coll) const
    {
        tw_case_t c = {};
        c.model = &coll->model;
        c.topo = &coll->topo;
        c.args = &args;
        c.bytes = (double)(N_ELEMS * tw_type_bytes(args.type));
        c.encoded_bytes = tw_cost_encoded_bytes(&c, args.codec);
        c.inner_bytes = tw_cost_encoded_bytes(&c, args.inner_codec);
        c.chunk_bytes = 4096;
        return c;
    }

    static tw_coll_cost_t cost_of(const tw_case_t &c, const tw_algo_t *algo)
    {
        tw_coll_cost_t cost;
        tw_traffic_t traffic;
        EXPECT_EQ(tw_traffic_read(c.topo, &algo->flows, 1, c.args->inner_codec != nullptr, &traffic), TW_OK);
        tw_cost_read(&c, &algo->flows, &traffic, &cost);
        return cost;
    }

    tw_quant_codec_t codec, inner;
    tw_coll_segment_t segment = {};
    tw_coll_args_t args = {};
};

TEST_F(QuantCost, EncodedBytesAreThoseOfTheShards)
{
    for (int w = 1; w <= 8; w++) {
        tw::World world(tw::nodes_of(std::vector<int>((size_t)w, 1)));
        tw_case_t c = case_of(world.coll(0));
        EXPECT_EQ(tw_cost_encoded_bytes(&c, nullptr), c.bytes);
        for (size_t n : {(size_t)0, (size_t)1, (size_t)31, (size_t)32, (size_t)33, (size_t)1000}) {
            double want = 0;
            segment.n_elems = n;
            for (int r = 0; r < w; r++) {
                want += (double)tw_quant_encoded_bytes(&codec, tw_coll_shard_elems(n, w, r));
            }
            EXPECT_EQ(tw_cost_encoded_bytes(&c, &codec), want) << n << " on " << w;
            std::vector<size_t> counts((size_t)w, 0);
            counts.back() = n; /* all on the last rank */
            segment.counts = counts.data();
            EXPECT_EQ(tw_cost_encoded_bytes(&c, &codec), (double)tw_quant_encoded_bytes(&codec, n));
            segment.counts = nullptr;
        }
    }
}

/* Never more than a shard, and of no bytes nothing. */
TEST_F(QuantCost, PlainChunkIsTheEncodedOneDecoded)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    tw_case_t c = case_of(world.coll(0));
    EXPECT_NEAR(tw_cost_plain_chunk(&c), c.chunk_bytes * c.bytes / c.encoded_bytes, 1e-6);
    c.chunk_bytes = 1e9;
    EXPECT_DOUBLE_EQ(tw_cost_plain_chunk(&c), c.bytes / 3);
    c.bytes = c.encoded_bytes = 0;
    EXPECT_EQ(tw_cost_plain_chunk(&c), 0);
}

/* Bytes through the busiest node's link, beside those that the schedules send. */
TEST_F(QuantCost, InterNodeBytesAreThoseSent)
{
    for (const std::vector<int> &grid : std::vector<std::vector<int>>{
             {4}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1}, {2, 2}, {2, 2, 2}, {4, 4}, {1, 3}}) {
        tw::World world(tw::nodes_of(grid));
        for (size_t i = 0; tw_algo_get(i) != nullptr; i++) {
            const tw_algo_t *algo = tw_algo_get(i);
            if (!algo->info.quantized || algo->info.lossless_only) {
                continue;
            }
            args.op = algo->info.op;
            args.algo = algo->info.name;
            args.force_codec = 1;
            std::vector<double> sent(grid.size());
            for (int r = 0; r < world.size(); r++) {
                uint64_t bytes = 0;
                ASSERT_EQ(tw_coll_planned_inter_node_bytes(world.coll(r), &args, &bytes), TW_OK);
                sent[(size_t)world.coll(r)->topo.node[r]] += (double)bytes;
            }
            const tw_coll_cost_t cost = cost_of(case_of(world.coll(0)), algo);
            EXPECT_NEAR(cost.inter_bytes, *std::max_element(sent.begin(), sent.end()), 1e-6)
                << tw_coll_op_name(args.op) << " " << args.algo << " on " << grid.size() << " nodes of "
                << grid[0];
        }
    }
}

/* An inner codec moves fewer bytes inside the node and none more between nodes. */
TEST_F(QuantCost, AnInnerCodecSavesInside)
{
    tw::World world(tw::nodes_of({2, 2}));
    const tw_algo_t *two_hop = nullptr;
    for (size_t i = 0; tw_algo_get(i) != nullptr; i++) {
        const tw_coll_algo_info_t &info = tw_algo_get(i)->info;
        bool found =
            info.quantized && info.op == TW_COLL_REDUCE_SCATTER && std::string(info.name) == "two_hop";
        two_hop = found ? tw_algo_get(i) : two_hop;
    }
    ASSERT_NE(two_hop, nullptr);
    const tw_coll_cost_t plain = cost_of(case_of(world.coll(0)), two_hop);
    args.inner_codec = &inner;
    const tw_case_t c = case_of(world.coll(0));
    const tw_coll_cost_t encoded = cost_of(c, two_hop);
    EXPECT_DOUBLE_EQ(plain.node_bytes, c.bytes);
    EXPECT_DOUBLE_EQ(encoded.node_bytes, c.inner_bytes);
    EXPECT_DOUBLE_EQ(encoded.inter_bytes, plain.inter_bytes);
}

} // namespace
