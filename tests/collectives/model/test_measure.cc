/* Measuring a model: all ranks end with the same one. */
#include <cstring>

#include "collectives/communicator.h"
#include "collectives/model/measuring.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

using Measure = tw::Fixture;

void expect_tier(const tw_coll_tier_t &tier)
{
    for (double value : {tier.alpha_sec, tier.beta_sec, tier.message_sec}) {
        EXPECT_GT(value, 0);
        EXPECT_LT(value, 10);
    }
    EXPECT_GT(tier.busy, 0);
    EXPECT_LE(tier.busy, 1);
    EXPECT_GE(tier.noise, 0);
}

/* All ranks end with the same model, whatever the shape of the world. */
TEST_F(Measure, AlikeEverywhere)
{
    set_env("TW_COLL_MODEL", "measure");
    const std::vector<std::vector<int>> grids = {{1}, {1, 1}, {2}, {1, 1, 1}, {2, 2}, {3, 1}, {1, 3, 2}};
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        const tw_coll_model_t *model = &world.coll(0)->model;
        for (int r = 1; r < world.size(); r++) {
            EXPECT_EQ(memcmp(model, &world.coll(r)->model, sizeof(*model)), 0);
        }
        expect_tier(model->inter);
        expect_tier(model->node);
        for (const char *text : {"int8", "int4:hadamard", "int2", "int2:hadamard,stochastic", "lossless"}) {
            tw_quant_codec_t codec;
            ASSERT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
            EXPECT_GT(tw_coll_model_encode_sec(model, &codec, 0, 1), 0) << text;
            EXPECT_GT(tw_coll_model_decode_sec(model, &codec, 0, 1), 0) << text;
        }
        EXPECT_GT(model->copy_sec, 0);
        EXPECT_GT(model->reduce_sec, 0);
    }
}

/* The measurement leaves no message behind: operations follow at once. */
TEST_F(Measure, SubsetsToo)
{
    set_env("TW_COLL_MODEL", "measure");
    tw::World world(tw::nodes_of({2, 2}));
    world.run([&](int rank) {
        const int ranks[] = {3, 0, 1};
        tw_coll_params_t params = tw::params_of(world.transport(rank), ranks, 3);
        if (rank == 2) {
            return;
        }
        tw_coll_t *coll;
        ASSERT_EQ(tw_coll_create(&params, &coll), TW_OK);
        int mine = tw_coll_rank(coll);
        char out[3] = {};
        tw_coll_segment_t segment = {};
        char in = (char)(mine + 1);
        segment.src = &in;
        segment.dst = out;
        segment.n_elems = 3;
        tw_coll_args_t args = {};
        args.op = TW_COLL_ALLGATHER;
        args.type = TW_TYPE_BYTE;
        args.segments = &segment;
        args.n_segments = 1;
        EXPECT_EQ(tw_coll_run(coll, &args), TW_OK);
        EXPECT_EQ(out[0], 1);
        EXPECT_EQ(out[1], 2);
        EXPECT_EQ(out[2], 3);
        tw_coll_destroy(coll);
    });
}

/* A member that leaves off in the middle of a measurement is an error within the time limit, and named. */
TEST_F(Measure, AMemberThatStopsMidwayIsNamed)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    expect_log("rank 0: making a communicator: nothing has come from rank 2");
    expect_log("rank 1: making a communicator: nothing has come from rank 2");
    world.run([&](int rank) {
        tw_bootstrap_t boot = {};
        boot.transport = world.transport(rank);
        boot.topo = &world.coll(rank)->topo;
        boot.tag = 200ull << TW_COLL_ID_SHIFT;
        boot.timeout_sec = 0.5;
        tw_coll_model_t model;
        int flag = 0;
        for (int i = 0; i < 2 && rank == 2; i++) { /* the agreements that begin round and reading */
            EXPECT_EQ(tw_bootstrap_any(&boot, &flag), TW_OK);
        }
        if (rank != 2) {
            EXPECT_EQ(tw_coll_model_measure(&boot, &model), TW_ERR_TIMEOUT);
        }
    });
}

TEST_F(Measure, CreatingIsGivenUpWhenARankDoesNotCome)
{
    set_env("TW_COLL_MODEL", "measure");
    set_env("TW_COLL_TIMEOUT", "300ms");
    tw_transport_t *transports[3];
    ASSERT_EQ(tw_transport_local_create(3, nullptr, transports), TW_OK);
    expect_log("rank 0: making a communicator: nothing has come from rank 1");
    allow_log("rank 2: making a communicator: nothing has come from rank");
    std::vector<std::thread> threads;
    for (int rank : {0, 2}) {
        threads.emplace_back([&transports, rank] {
            tw_coll_params_t params = {};
            params.transport = transports[rank];
            tw_coll_t *coll;
            EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_TIMEOUT);
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (tw_transport_t *transport : transports) {
        tw_transport_destroy(transport);
    }
}

} // namespace
