/* The cost model: its text and its arithmetic. */
#include <cstring>

#include "collectives/communicator.h"
#include "collectives/model/model.h"
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
    for (int i = 0; i < TW_COLL_MODEL_ENCODERS; i++) {
        EXPECT_DOUBLE_EQ(model.encode_sec[i], i % 2 == 1 ? 1.0 / (1 << 30) : dflt.encode_sec[i]);
    }
    ASSERT_EQ(tw_coll_model_parse("", &model), TW_OK);
    EXPECT_EQ(memcmp(&model, &dflt, sizeof(model)), 0);
    ASSERT_EQ(tw_coll_model_parse("codec:decode=2G;node:busy=0.5", &model), TW_OK);
    for (int i = 0; i < TW_COLL_MODEL_DECODERS; i++) {
        EXPECT_DOUBLE_EQ(model.decode_sec[i], 1.0 / ((size_t)2 << 30));
    }
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
        {"node:noise=-0.1", "is not a share from 0 to 1000"},
        {"cpu:noise=1001", "is not a share from 0 to 1000"},
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
    ASSERT_EQ(
        tw_coll_model_parse(
            "inter:alpha=123us,beta=957mbit,message=7us,turn=88us,busy=0.25,noise=0.1;node:alpha=3us,beta="
            "33gbit,"
            "noise=12;cpu:copy=9G,reduce=2G,noise=0.02;int8:encode=1G,decode=3G;int4:encode=2G,decode=4G",
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
    model.inter = {1e-3, 1e-6, 1e-4, 0, 0.5, 0};
    model.node = {1e-4, 1e-8, 0, 0, 1, 0};
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
    model.inter = {1e-3, 1e-6, 0, 1e-2, 0, 0};
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

TEST_F(Model, TypicalIsTheModelWithItsNoise)
{
    tw_coll_model_t model, typical;
    ASSERT_EQ(tw_coll_model_parse("inter:alpha=10us,beta=1gbit,message=2us,turn=20us,busy=0.5,noise=0.5;"
                                  "node:beta=8gbit,noise=1;cpu:copy=4G,noise=3;codec:encode=2G,decode=1G",
                                  &model),
              TW_OK);
    tw_coll_model_typical(&model, &typical);
    EXPECT_DOUBLE_EQ(typical.inter.alpha_sec, 15e-6);
    EXPECT_DOUBLE_EQ(typical.inter.beta_sec, 12e-9);
    EXPECT_DOUBLE_EQ(typical.inter.message_sec, 3e-6);
    EXPECT_DOUBLE_EQ(typical.inter.turn_sec, 30e-6);
    EXPECT_DOUBLE_EQ(typical.inter.busy, 0.5);
    EXPECT_DOUBLE_EQ(typical.node.beta_sec, 2e-9);
    EXPECT_DOUBLE_EQ(typical.copy_sec, 4 * model.copy_sec);
    EXPECT_DOUBLE_EQ(typical.reduce_sec, 4 * model.reduce_sec);
    for (int i = 0; i < TW_COLL_MODEL_ENCODERS; i++) {
        EXPECT_DOUBLE_EQ(typical.encode_sec[i], 4 * model.encode_sec[i]);
    }
    for (int i = 0; i < TW_COLL_MODEL_DECODERS; i++) {
        EXPECT_DOUBLE_EQ(typical.decode_sec[i], 4 * model.decode_sec[i]);
    }
}

/* Nothing but a link inside a node that seems slower than copying allows. */
TEST_F(Model, QuietBelievesNoLinkThatIsSlowerThanCopying)
{
    tw_coll_model_t model, quiet;
    tw_coll_model_default(&model);
    model.node.beta_sec = 0.99 * TW_COLL_QUIET_COPIES * model.copy_sec;
    tw_coll_model_quiet(&model, &quiet);
    EXPECT_EQ(memcmp(&model, &quiet, sizeof(model)), 0);
    model.node.beta_sec = 100 * model.copy_sec;
    tw_coll_model_quiet(&model, &quiet);
    EXPECT_DOUBLE_EQ(quiet.node.beta_sec, TW_COLL_QUIET_COPIES * model.copy_sec);
    quiet.node.beta_sec = model.node.beta_sec;
    EXPECT_EQ(memcmp(&model, &quiet, sizeof(model)), 0);
}

TEST_F(Model, CodecsHaveTheirOwnSpeeds)
{
    tw_coll_model_t model;
    tw_coll_model_default(&model);
    for (int i = 0; i < TW_COLL_MODEL_ENCODERS; i++) {
        model.encode_sec[i] = i + 1;
    }
    for (int i = 0; i < TW_COLL_MODEL_DECODERS; i++) {
        model.decode_sec[i] = i + 1;
    }
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

} // namespace
