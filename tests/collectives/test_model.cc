/* The cost model: its text, its arithmetic, its measurement. */
#include <cstring>

#include "collectives/coll.h"
#include "collectives/model.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

using Model = tw::Fixture;

TEST_F(Model, ParsesWhatIsGivenOntoTheDefaults)
{
    tw_coll_model_t model, dflt;
    tw_coll_model_default(&dflt);
    ASSERT_EQ(tw_coll_model_parse(" inter: alpha = 70us , beta=100mbit; int4:encode=1G ;", &model), TW_OK);
    EXPECT_DOUBLE_EQ(model.inter.alpha_sec, 70e-6);
    EXPECT_DOUBLE_EQ(model.inter.beta_sec, 8 / 100e6);
    EXPECT_DOUBLE_EQ(model.inter.message_sec, dflt.inter.message_sec);
    EXPECT_DOUBLE_EQ(model.node.beta_sec, dflt.node.beta_sec);
    for (int i = 0; i < TW_COLL_MODEL_ENCODERS; i++)
        EXPECT_DOUBLE_EQ(model.encode_sec[i], i % 2 == 1 ? 1.0 / (1 << 30) : dflt.encode_sec[i]);
    ASSERT_EQ(tw_coll_model_parse("", &model), TW_OK);
    EXPECT_EQ(memcmp(&model, &dflt, sizeof(model)), 0);
    ASSERT_EQ(tw_coll_model_parse("codec:decode=2G;node:busy=0.5", &model), TW_OK);
    for (int i = 0; i < TW_COLL_MODEL_DECODERS; i++)
        EXPECT_DOUBLE_EQ(model.decode_sec[i], 1.0 / ((size_t)2 << 30));
    EXPECT_DOUBLE_EQ(model.node.busy, 0.5);
}

TEST_F(Model, RefusesWhatItDoesNotKnow)
{
    const char *const bad[][2] = {
        {"inter:alfa=1us", "did you mean inter:alpha"},
        {"internet:beta=1gbit", "unknown value internet:beta"},
        {"inter:beta=fast", "is not a rate such as 1gbit"},
        {"inter:beta=0", "is not a rate"},
        {"inter:alpha=-1us", "is not a time"},
        {"inter:busy=2", "is not a share from 0 to 1"},
        {"codec:encode=quick", "is not bytes per second"},
        {"inter", "is not of the form name:key=value"},
        {"inter:alpha", "is not of the form key=value"},
    };
    for (const char *const *pair : bad) {
        tw_coll_model_t model, before;
        memset(&before, 0x5a, sizeof(before));
        model = before;
        expect_log(pair[1]);
        EXPECT_EQ(tw_coll_model_parse(pair[0], &model), TW_ERR_CONFIG) << pair[0];
        EXPECT_EQ(memcmp(&model, &before, sizeof(model)), 0) << pair[0];
    }
}

TEST_F(Model, BadVariableFailsTheCommunicator)
{
    set_env("TW_COLL_MODEL", "inter:beta=fast");
    expect_log("TW_COLL_MODEL");
    int node = 0;
    tw_transport_t *transport;
    ASSERT_EQ(tw_transport_local_create(1, &node, &transport), TW_OK);
    tw_coll_params_t params = {transport, nullptr, 0, 0};
    tw_coll_t *coll;
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_CONFIG);
    tw_transport_destroy(transport);
}

TEST_F(Model, FormatIsTheInverseOfParse)
{
    tw_coll_model_t model, again;
    char text[TW_COLL_MODEL_TEXT_BYTES], text_again[TW_COLL_MODEL_TEXT_BYTES];
    ASSERT_EQ(tw_coll_model_parse(
                  "inter:alpha=123us,beta=957mbit,message=7us,turn=88us,busy=0.25;node:alpha=3us,beta=33gbit;"
                  "cpu:copy=9G,reduce=2G;int8:encode=1G,decode=3G;int4:encode=2G,decode=4G",
                  &model),
              TW_OK);
    tw_coll_model_format(&model, text, sizeof(text));
    ASSERT_LT(strlen(text) + 1, sizeof(text));
    ASSERT_EQ(tw_coll_model_parse(text, &again), TW_OK) << text;
    EXPECT_STREQ(tw_coll_model_format(&again, text_again, sizeof(text_again)), text);
    EXPECT_NEAR(again.inter.beta_sec, model.inter.beta_sec, 1e-4 * model.inter.beta_sec);
    EXPECT_NEAR(again.encode_sec[1], model.encode_sec[1], 1e-2 * model.encode_sec[1]);
    char small[20];
    EXPECT_EQ(strncmp(tw_coll_model_format(&model, small, sizeof(small)), text, sizeof(small) - 1), 0);
}

TEST_F(Model, TimeIsTheLongestOfLinksAndProcessor)
{
    tw_coll_model_t model;
    tw_coll_model_default(&model);
    model.inter = {1e-3, 1e-6, 1e-4, 0, 0.5};
    model.node = {1e-4, 1e-8, 0, 0, 1};
    tw_coll_cost_t cost = {};
    cost.inter_rounds = 3;
    cost.inter_messages = 2;
    cost.inter_bytes = 1000;
    EXPECT_DOUBLE_EQ(tw_coll_model_time(&model, &cost), 3e-3 + 1000e-6 + 2e-4);
    cost.cpu_sec = 1e-3; /* with half of the link's time longer than the link alone */
    EXPECT_DOUBLE_EQ(tw_coll_model_time(&model, &cost), 3e-3 + 1e-3 + 0.5 * 1.2e-3);
    cost.fill_sec = 1e-2;
    EXPECT_DOUBLE_EQ(tw_coll_model_time(&model, &cost), 3e-3 + 1e-3 + 0.5 * 1.2e-3 + 1e-2);
}

TEST_F(Model, ManyMessagesHideTheTurn)
{
    tw_coll_model_t model;
    tw_coll_model_default(&model);
    model.inter = {1e-3, 1e-6, 0, 1e-2, 0};
    tw_coll_cost_t cost = {};
    cost.inter_rounds = 3;
    for (double messages : {3, 6, 30}) {
        cost.inter_messages = messages;
        cost.inter_bytes = messages * (double)TW_COLL_TURN_BYTES;
        EXPECT_DOUBLE_EQ(tw_coll_model_time(&model, &cost),
                         3 * (1e-3 + 1e-2 * 3 / messages) + cost.inter_bytes * 1e-6);
    }
    cost.inter_messages = 3; /* a quarter of the bytes, a quarter of a turn */
    cost.inter_bytes = 3 * (double)TW_COLL_TURN_BYTES / 4;
    EXPECT_DOUBLE_EQ(tw_coll_model_time(&model, &cost), 3 * (1e-3 + 1e-2 / 4) + cost.inter_bytes * 1e-6);
}

TEST_F(Model, CodecsHaveTheirOwnSpeeds)
{
    tw_coll_model_t model;
    tw_coll_model_default(&model);
    for (int i = 0; i < TW_COLL_MODEL_ENCODERS; i++)
        model.encode_sec[i] = i + 1;
    for (int i = 0; i < TW_COLL_MODEL_DECODERS; i++)
        model.decode_sec[i] = i + 1;
    std::vector<double> encode, decode;
    for (const char *text : {"int8", "int4", "int8:hadamard", "int4:hadamard", "int8:stochastic",
                             "int4:stochastic", "int8:hadamard,stochastic", "int4:hadamard,stochastic"}) {
        tw_quant_codec_t codec;
        ASSERT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
        encode.push_back(tw_coll_model_encode_sec(&model, &codec));
        decode.push_back(tw_coll_model_decode_sec(&model, &codec));
    }
    EXPECT_EQ(encode, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(decode, (std::vector<double>{1, 2, 3, 4, 1, 2, 3, 4}));
}

void expect_tier(const tw_coll_tier_t &tier)
{
    for (double value : {tier.alpha_sec, tier.beta_sec, tier.message_sec}) {
        EXPECT_GT(value, 0);
        EXPECT_LT(value, 10);
    }
    EXPECT_GT(tier.busy, 0);
    EXPECT_LE(tier.busy, 1);
}

/* All ranks end with the same model, whatever the shape of the world. */
TEST_F(Model, MeasuredAlikeEverywhere)
{
    set_env("TW_COLL_MODEL", "measure");
    const std::vector<std::vector<int>> grids = {{1}, {1, 1}, {2}, {1, 1, 1}, {2, 2}, {3, 1}, {1, 3, 2}};
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        const tw_coll_model_t *model = &world.coll(0)->model;
        for (int r = 1; r < world.size(); r++)
            EXPECT_EQ(memcmp(model, &world.coll(r)->model, sizeof(*model)), 0);
        expect_tier(model->inter);
        expect_tier(model->node);
        for (double value : model->encode_sec)
            EXPECT_GT(value, 0);
        for (double value : model->decode_sec)
            EXPECT_GT(value, 0);
        EXPECT_GT(model->copy_sec, 0);
        EXPECT_GT(model->reduce_sec, 0);
    }
}

/* The measurement leaves no message behind: operations follow at once. */
TEST_F(Model, SubsetsMeasureToo)
{
    set_env("TW_COLL_MODEL", "measure");
    tw::World world(tw::nodes_of({2, 2}));
    world.run([&](int rank) {
        const int ranks[] = {3, 0, 1};
        tw_coll_params_t params = {world.transport(rank), ranks, 3, 1};
        if (rank == 2)
            return;
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

} // namespace
