/* Arguments that make no sense are refused, with a line that says which. */
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

class Args : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:alpha=50us");
        world = std::make_unique<tw::World>(std::vector<int>{0});
        segment.src = src;
        segment.dst = dst;
        segment.n_elems = 8;
        args.op = TW_COLL_ALLREDUCE;
        args.type = TW_TYPE_FP32;
        args.segments = &segment;
        args.n_segments = 1;
    }
    void TearDown() override
    {
        world.reset();
        tw::Fixture::TearDown();
    }
    void refused(const char *why, tw_status_t status = TW_ERR_INVALID)
    {
        tw_coll_request_t *request = nullptr;
        expect_log(why);
        EXPECT_EQ(tw_coll_post(world->coll(0), &args, &request), status);
        EXPECT_EQ(request, nullptr);
    }
    std::unique_ptr<tw::World> world;
    float src[8] = {}, dst[8] = {};
    tw_coll_segment_t segment = {};
    tw_coll_args_t args = {};
};

TEST_F(Args, UnknownOperation)
{
    args.op = (tw_coll_op_t)17;
    refused("unknown operation 17");
}

TEST_F(Args, UnknownType)
{
    args.type = (tw_type_t)17;
    refused("unknown element type");
}

TEST_F(Args, BytesAreNotReduced)
{
    args.type = TW_TYPE_BYTE;
    refused("bytes cannot be reduced");
}

TEST_F(Args, UnknownReduction)
{
    args.reduction = (tw_coll_reduction_t)9;
    refused("unknown reduction");
}

TEST_F(Args, RootOutside)
{
    args.op = TW_COLL_BROADCAST;
    args.root = 1;
    refused("root is not a rank");
}

TEST_F(Args, CountsMustAddUp)
{
    size_t counts[1] = {7};
    args.op = TW_COLL_ALLGATHER;
    segment.counts = counts;
    refused("counts do not sum up");
}

TEST_F(Args, OwnCountsOfAnAlltoallAgree)
{
    size_t counts[1] = {7};
    args.op = TW_COLL_ALLTOALL;
    segment.recv_counts = counts;
    refused("differ for the own rank");
}

TEST_F(Args, NoDestination)
{
    segment.dst = nullptr;
    refused("dst is NULL");
}

TEST_F(Args, NoSource)
{
    args.op = TW_COLL_REDUCE_SCATTER;
    segment.src = nullptr;
    refused("src is NULL");
}

TEST_F(Args, NoSegments)
{
    args.segments = nullptr;
    refused("segments is NULL");
}

TEST_F(Args, BarrierTakesNone)
{
    args.op = TW_COLL_BARRIER;
    refused("takes no segments");
}

TEST_F(Args, CodecWhereThereIsNone)
{
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("int8", &codec), TW_OK);
    args.op = TW_COLL_BROADCAST;
    args.codec = &codec;
    refused("no quantized form");
}

TEST_F(Args, BytesAreNotQuantized)
{
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("int8", &codec), TW_OK);
    args.op = TW_COLL_ALLGATHER;
    args.type = TW_TYPE_BYTE;
    args.codec = &codec;
    refused("bytes cannot be encoded");
}

TEST_F(Args, BadCodec)
{
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("int8", &codec), TW_OK);
    codec.kind = TW_QUANT_KINDS;
    args.codec = &codec;
    refused("there is no codec");
    tw_quant_codec_t int8;
    ASSERT_EQ(tw_quant_codec_parse("int8", &int8), TW_OK);
    args.codec = &int8;
    args.inner_codec = &codec;
    refused("there is no codec");
}

TEST_F(Args, TwoBitsAreNotSummed)
{
    tw_quant_codec_t int2, int4;
    ASSERT_EQ(tw_quant_codec_parse("int2", &int2), TW_OK);
    ASSERT_EQ(tw_quant_codec_parse("int4", &int4), TW_OK);
    for (tw_coll_op_t op : {TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
        args.op = op;
        args.codec = &int2;
        refused("does not sum", TW_ERR_UNSUPPORTED);
        args.codec = &int4;
        args.inner_codec = &int2;
        refused("does not sum", TW_ERR_UNSUPPORTED);
        args.inner_codec = nullptr;
        segment.codec = &int2;
        refused("does not sum", TW_ERR_UNSUPPORTED);
        segment.codec = nullptr;
    }
}

TEST_F(Args, InnerCodecAlone)
{
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("int8", &codec), TW_OK);
    args.inner_codec = &codec;
    refused("inner_codec needs a codec");
}

/* Sums and products of sizes that wrap would pass for small ones, and be written in front of the caller's
 * memory. */
TEST_F(Args, SizesThatDoNotFitInMemory)
{
    const size_t endless[] = {SIZE_MAX};
    segment.n_elems = SIZE_MAX / 4 + 2; /* 4 bytes each would wrap to 4 */
    for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE, TW_COLL_BROADCAST,
                            TW_COLL_ALLTOALL}) {
        args.op = op;
        refused("n_elems is more than fits in memory");
    }
    const tw_coll_segment_t half = {src, dst, TW_MEMORY_BYTES_MAX / 8, nullptr, nullptr, 0, 0, nullptr, 0, 0};
    const tw_coll_segment_t segments[] = {half, half, {src, dst, 1, nullptr, nullptr, 0, 0, nullptr, 0, 0}};
    args.op = TW_COLL_ALLREDUCE;
    args.segments = segments;
    args.n_segments = 3;
    refused("n_elems is more than fits in memory");
    args.segments = &segment;
    args.n_segments = SIZE_MAX;
    for (tw_coll_op_t op : {TW_COLL_ALLREDUCE, TW_COLL_ALLTOALL}) { /* none of them is looked at */
        args.op = op;
        refused("n_segments is more than fits in memory");
    }
    args.n_segments = 1;
    segment.n_elems = SIZE_MAX;
    segment.counts = segment.recv_counts = endless;
    refused("n_elems is more than fits in memory");
}

/* {SIZE_MAX, 65} once summed to 64. */
TEST_F(Args, CountsThatWrap)
{
    const size_t wrong[] = {SIZE_MAX, 65}, fitting[] = {4, 4}, n = 8;
    std::vector<float> memory(3 * n, 7); /* room of which nothing is written */
    tw::World two({0, 1});
    segment.src = memory.data() + n;
    segment.dst = memory.data() + n;
    segment.n_elems = 64;
    segment.counts = wrong;
    const auto both_refuse = [&](const char *why) {
        expect_log(why);
        two.run([&](int rank) {
            tw_coll_request_t *request = nullptr;
            EXPECT_EQ(tw_coll_post(two.coll(rank), &args, &request), TW_ERR_INVALID);
            EXPECT_EQ(request, nullptr);
        });
    };
    for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLTOALL}) {
        args.op = op;
        both_refuse("counts do not sum up to n_elems");
    }
    segment.n_elems = n;
    segment.counts = fitting;
    segment.recv_counts = wrong;
    both_refuse("the sum of recv_counts is more than fits in memory");
    EXPECT_EQ(memory, std::vector<float>(3 * n, 7));
}

TEST_F(Args, UnknownAlgorithm)
{
    args.algo = "rign";
    refused("no plain algorithm \"rign\"");
}

TEST_F(Args, NothingToDoIsFine)
{
    args.n_segments = 0;
    EXPECT_EQ(tw_coll_run(world->coll(0), &args), TW_OK);
    args.n_segments = 1;
    segment = {};
    for (int op = 0; op < TW_COLL_BARRIER; op++) {
        args.op = (tw_coll_op_t)op;
        EXPECT_EQ(tw_coll_run(world->coll(0), &args), TW_OK);
    }
}

TEST_F(Args, CallersArraysMayGoOnceItIsPosted)
{
    tw_coll_request_t *request;
    {
        std::vector<size_t> counts = {8};
        std::vector<tw_coll_segment_t> segments = {segment};
        std::string algo = "ring";
        args.op = TW_COLL_ALLGATHER;
        segments[0].counts = counts.data();
        args.segments = segments.data();
        args.algo = algo.c_str();
        src[7] = 3;
        ASSERT_EQ(tw_coll_post(world->coll(0), &args, &request), TW_OK);
        counts[0] = 0;
        segments[0] = {};
    }
    EXPECT_EQ(tw_coll_wait(request), TW_OK);
    EXPECT_EQ(dst[7], 3);
}

TEST_F(Args, CommunicatorIdAndRanks)
{
    tw_coll_t *coll = nullptr;
    int outside[] = {0, 1}, twice[] = {0, 0};
    tw_coll_params_t params = tw::params_of(world->transport(0), nullptr, 0, 256);
    expect_log("id 256");
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_INVALID);
    params = tw::params_of(world->transport(0), outside, 2, 1);
    expect_log("there is no rank 1");
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_INVALID);
    params.ranks = twice;
    expect_log("listed twice");
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_INVALID);
    params.n_ranks = 0;
    expect_log("own rank is not listed");
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_INVALID);
    EXPECT_EQ(coll, nullptr);
}

} // namespace
