/* Quantized all-to-all: every pair's share beside what the codec alone makes of it, and every byte counted;
 * counts that do not fit are an error at once. */
#include "collectives/communicator.h"
#include "tests/collectives/quantized/alltoall.h"
#include "tests/common/fixture.h"

namespace
{

using namespace tw::alltoall;

class Alltoall : public tw::Fixture
{
  protected:
    static void check(tw::World &world, const Ask &ask)
    {
        world.run([&](int rank) {
            std::string wrong = check_rank(world.coll(rank), ask);
            EXPECT_EQ(wrong, "") << "rank " << rank;
        });
    }
};

TEST_F(Alltoall, EveryWorldCodecAndCount)
{
    const std::vector<std::string> codecs = {
        "int8", "int4:block=32", "int2:block=64", "int4:stochastic", "int8:hadamard", ""};
    const tw_type_t types[] = {TW_TYPE_BF16, TW_TYPE_FP32, TW_TYPE_FP16};
    std::vector<std::vector<int>> worlds = {
        {0},      {0, 1}, {0, 1, 2}, {0, 1, 0, 1, 0}, {0, 0, 0, 1}, {0, 0, 1, 1, 2, 2}, {0, 1, 2, 3, 4, 5, 6},
        {0, 0, 0}};
    set_env("TW_COLL_CHUNK", "1K"); /* several messages for most shares */
    std::mt19937 random(3);
    for (const std::vector<int> &nodes : worlds) {
        tw::World world(nodes);
        for (const std::string &codec : codecs) {
            for (int turn = 0; turn < 4; turn++) {
                Ask ask = {types[random() % 3], codec, turn % 2 == 1, {}};
                for (size_t s = 0; s < 1 + random() % 3; s++) {
                    bool mixed = !codec.empty() && random() % 3 == 0;
                    const char *own = random() % 2 ? "plain" : "int8:block=64";
                    ask.segments.push_back(
                        {random_counts(random, world.size(), 1u << (4 + random() % 9)), mixed ? own : ""});
                }
                SCOPED_TRACE(std::to_string(nodes.size()) + " ranks, " + codec + ", turn " +
                             std::to_string(turn));
                check(world, ask);
            }
        }
    }
}

/* What the codec makes of the shares for other nodes, and what the ranks tell each other about the
 * operation. */
TEST_F(Alltoall, FewerBytes)
{
    const size_t n = 100000, pair_bytes = 16;
    tw::World world(tw::nodes_of({2, 1, 1}));
    Ask ask = {TW_TYPE_BF16, "", false, {{Counts(4, std::vector<size_t>(4, n)), ""}}};
    std::vector<std::string> texts = tw::codec_texts(false);
    texts.push_back("");
    for (const std::string &text : texts) {
        ask.codec = text;
        Rank own(ask, 2);
        size_t share = text.empty() ? 2 * n : tw_quant_encoded_bytes(&own.codec, n);
        uint64_t planned = 0;
        EXPECT_EQ(tw_coll_planned_inter_node_bytes(world.coll(2), &own.args, &planned), TW_OK);
        EXPECT_EQ(planned, 3 * (share + pair_bytes) + sizeof(tw_coll_signature_t)) << text;
    }
}

/* Ranks know nothing of the others' sizes, but decide alike; on a fast link the codec is declined. */
TEST_F(Alltoall, ChosenAlikeWhateverTheSizes)
{
    for (const char *model : {"inter:beta=100mbit", "inter:beta=400gbit;codec:encode=1G,decode=1G"}) {
        set_env("TW_COLL_MODEL", model);
        tw::World world(tw::nodes_of({1, 2}));
        for (size_t most : {4, 100000}) {
            Counts counts(3, std::vector<size_t>(3, 1));
            counts[2][0] = most;
            Ask ask = {TW_TYPE_FP32, "int8", false, {{counts, ""}}};
            world.run([&](int rank) {
                Rank own(ask, rank);
                own.args.force_codec = 0;
                ASSERT_EQ(world.run(rank, &own.args), TW_OK);
            });
            for (int r = 0; r < 3; r++) {
                EXPECT_EQ(world.plan(r).quantized, std::string(model) == "inter:beta=100mbit") << model;
                EXPECT_EQ(world.plan(r).chunk_bytes, world.plan(0).chunk_bytes);
                EXPECT_EQ(world.plan(r).reason[0] == '\0', world.plan(r).quantized);
            }
        }
    }
}

/* Whatever ranks say of their counts, either they fit or somebody is told: never a hang, never an operation
 * that seems to end well with what was not sent. Shares that are whole chunks are the ones where no message
 * is of a wrong size. */
TEST_F(Alltoall, CountsThatDoNotFit)
{
    set_env("TW_COLL_CHUNK", "256");
    std::mt19937 random(5);
    const size_t sizes[] = {0, 64, 128, 100, 64 * 5};
    for (int i = 0; i < 12; i++) {
        int w = 2 + (int)(random() % 3);
        Counts counts((size_t)w, std::vector<size_t>((size_t)w, 64));
        for (std::vector<size_t> &row : counts) {
            for (size_t &n : row) {
                n = sizes[random() % 5];
            }
        }
        int liar = (int)(random() % (unsigned)w),
            about = (liar + 1 + (int)(random() % (unsigned)(w - 1))) % w;
        Ask ask = {TW_TYPE_FP32, i % 2 ? "int8" : "", false, {{counts, ""}}};
        size_t told = counts[(size_t)about][(size_t)liar];
        size_t lie = told;
        while (lie == told) {
            lie = sizes[random() % 5];
        }
        allow_log("rank ");
        tw::World world(tw::nodes_of(std::vector<int>((size_t)w, 1)));
        std::vector<tw_status_t> got((size_t)w);
        world.run([&](int rank) {
            Rank own(ask, rank);
            if (rank == liar) { /* expects another number of elements from `about` */
                own.recv_counts[0][(size_t)about] = lie;
                own.dst[0].resize(own.dst[0].size() + 64 * 5 * 4);
                own.segments[0].dst = own.dst[0].data();
            }
            got[(size_t)rank] = tw_coll_run(world.coll(rank), &own.args);
        });
        EXPECT_EQ(got[(size_t)liar], TW_ERR_MISMATCH) << i;
    }
}

/* Without counts all ranks send as much to each; a size that cannot be split so is refused, on all ranks, and
 * the job goes on. */
TEST_F(Alltoall, DefaultsAgree)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    expect_log("n_elems is no multiple of the ranks");
    world.run([&](int rank) {
        std::vector<float> src(20), dst(40, -1);
        std::iota(src.begin(), src.end(), 100.0f * (float)rank);
        tw_coll_segment_t segment = {};
        segment.src = src.data();
        segment.dst = dst.data();
        segment.n_elems = 20;
        tw_coll_args_t args = {};
        args.op = TW_COLL_ALLTOALL;
        args.type = TW_TYPE_FP32;
        args.segments = &segment;
        args.n_segments = 1;
        EXPECT_EQ(tw_coll_run(world.coll(rank), &args), TW_ERR_INVALID);

        segment.n_elems = 6;
        ASSERT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
        for (int from = 0; from < 3; from++) {
            EXPECT_EQ(dst[(size_t)(2 * from)], 100.0f * (float)from + 2 * (float)rank);
        }
        /* counts alone: the same ones on all ranks */
        const size_t counts[] = {4, 0, 7}, before[] = {0, 4, 4};
        segment.n_elems = 11;
        segment.counts = counts;
        ASSERT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
        for (size_t i = 0; i < 3 * counts[rank]; i++) {
            size_t from = i / counts[rank];
            EXPECT_EQ(dst[i], 100.0f * (float)from + (float)(before[rank] + i % counts[rank]));
        }
    });
}

} // namespace
