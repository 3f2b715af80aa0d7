/* The cost model: its arithmetic. */
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "collectives/model/model.h"
#include "tests/common/fixture.h"

namespace
{

using Model = tw::Fixture;

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
    for (int i = 0; i < TW_COLL_MODEL_SPEEDS; i++) {
        EXPECT_DOUBLE_EQ(typical.encode_sec[i], 4 * model.encode_sec[i]);
        EXPECT_DOUBLE_EQ(typical.decode_sec[i], 4 * model.decode_sec[i]);
    }
    EXPECT_DOUBLE_EQ(typical.encode_message_sec, 4 * model.encode_message_sec);
    EXPECT_DOUBLE_EQ(typical.decode_message_sec, 4 * model.decode_message_sec);
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

/* Each codec is priced as what it is, and with the options that make a difference. */
TEST_F(Model, CodecsHaveTheirOwnSpeeds)
{
    tw_coll_model_t model;
    tw_coll_model_default(&model);
    model.encode_message_sec = model.decode_message_sec = 0;
    for (int i = 0; i < TW_COLL_MODEL_SPEEDS; i++) {
        model.encode_sec[i] = model.decode_sec[i] = i + 1;
    }
    std::set<double> encode, decode;
    size_t n_encoders = 0, n_decoders = 0;
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get(tw_quant_kind_t(kind));
        for (const char *options : {"", ":hadamard", ":stochastic", ":hadamard,stochastic"}) {
            const std::string text = std::string(row->name) + options;
            const bool rotates = text.find("hadamard") != std::string::npos;
            const bool is_stochastic = text.find("stochastic") != std::string::npos;
            if ((rotates && !(row->has & TW_QUANT_HAS_HADAMARD)) ||
                (is_stochastic && !(row->has & TW_QUANT_HAS_STOCHASTIC))) {
                continue;
            }
            tw_quant_codec_t codec;
            ASSERT_EQ(tw_quant_codec_parse_any(text.c_str(), &codec), TW_OK);
            encode.insert(tw_coll_model_encode_sec(&model, &codec, 5, 10));
            decode.insert(tw_coll_model_decode_sec(&model, &codec, 5, 10));
            n_encoders++;
            n_decoders += !is_stochastic;
        }
    }
    EXPECT_EQ(encode.size(), n_encoders);
    EXPECT_EQ(decode.size(), n_decoders) << "how a codec rounds is nothing to its decoder";
}

/* Tables and lists are made for each message, whatever its length. */
TEST_F(Model, LosslessMessagesCostTimeOfTheirOwn)
{
    tw_coll_model_t model;
    tw_coll_model_default(&model);
    model.encode_sec[4 * TW_QUANT_LOSSLESS] = 2;
    model.decode_sec[4 * TW_QUANT_LOSSLESS] = 3;
    model.encode_message_sec = 100;
    model.decode_message_sec = 1000;
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("lossless", &codec), TW_OK);
    EXPECT_EQ(tw_coll_model_encode_sec(&model, &codec, 5, 10), 520);
    EXPECT_EQ(tw_coll_model_decode_sec(&model, &codec, 5, 10), 5030);
}

} // namespace
