/* The cost model as text. */
#include <cstring>

#include "collectives/model/model.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

using ModelText = tw::Fixture;

TEST_F(ModelText, ParsesWhatIsGivenOntoTheDefaults)
{
    tw_coll_model_t model, dflt;
    tw_coll_model_default(&dflt);
    ASSERT_EQ(tw_coll_model_parse(" inter: alpha = 70us , beta=100mbit; int4:encode=1G ;", &model), TW_OK);
    EXPECT_DOUBLE_EQ(model.inter.alpha_sec, 70e-6);
    EXPECT_DOUBLE_EQ(model.inter.beta_sec, 8 / 100e6);
    EXPECT_DOUBLE_EQ(model.inter.message_sec, dflt.inter.message_sec);
    EXPECT_DOUBLE_EQ(model.node.beta_sec, dflt.node.beta_sec);
    for (int i = 0; i < TW_COLL_MODEL_SPEEDS; i++) {
        EXPECT_DOUBLE_EQ(model.encode_sec[i], i / 4 == TW_QUANT_INT4 ? 1.0 / (1 << 30) : dflt.encode_sec[i]);
    }
    ASSERT_EQ(tw_coll_model_parse("", &model), TW_OK);
    EXPECT_EQ(memcmp(&model, &dflt, sizeof(model)), 0);
    ASSERT_EQ(tw_coll_model_parse("codec:decode=2G;lossless:decode=0;ecdq:decode=0;node:busy=0.5", &model),
              TW_OK);
    for (int i = 0; i < TW_COLL_MODEL_SPEEDS; i++) {
        EXPECT_DOUBLE_EQ(model.decode_sec[i], 1.0 / ((size_t)2 << 30));
    }
    EXPECT_DOUBLE_EQ(model.node.busy, 0.5);
    ASSERT_EQ(tw_coll_model_parse("int8:decode=5G;codec:decode=2G", &model), TW_OK); /* in any order */
    EXPECT_DOUBLE_EQ(model.decode_sec[4 * TW_QUANT_INT8], 1.0 / ((size_t)5 << 30));
    EXPECT_DOUBLE_EQ(model.decode_sec[4 * TW_QUANT_INT4], 1.0 / ((size_t)2 << 30));
}

/* Not as fast as the others where nothing is said: it is not. */
TEST_F(ModelText, LosslessHasItsOwnSpeedAndMessages)
{
    tw_coll_model_t model;
    ASSERT_EQ(tw_coll_model_parse("codec:encode=8G,decode=8G", &model), TW_OK);
    EXPECT_GT(model.encode_sec[4 * TW_QUANT_LOSSLESS], 2 * model.encode_sec[4 * TW_QUANT_INT8]);
    EXPECT_GT(model.decode_sec[4 * TW_QUANT_LOSSLESS], 2 * model.decode_sec[4 * TW_QUANT_INT8]);
    EXPECT_GT(model.encode_message_sec, model.decode_message_sec);
    ASSERT_EQ(tw_coll_model_parse("lossless:encode=1G,encode_message=70us,decode_message=3us", &model),
              TW_OK);
    EXPECT_DOUBLE_EQ(model.encode_sec[4 * TW_QUANT_LOSSLESS], 1.0 / (1 << 30));
    EXPECT_DOUBLE_EQ(model.encode_message_sec, 70e-6);
    EXPECT_DOUBLE_EQ(model.decode_message_sec, 3e-6);
}

TEST_F(ModelText, RefusesWhatItDoesNotKnow)
{
    const char *const bad[][2] = {
        {"inter:alfa=1us", "did you mean inter:alpha"},
        {"internet:beta=1gbit", "unknown key internet:beta"},
        {"inter:beta=fast", "expected a rate such as 1gbit"},
        {"inter:beta=0", "expected a rate"},
        {"inter:alpha=-1us", "expected a time"},
        {"inter:busy=2", "from 0 to 1"},
        {"node:noise=-0.1", "from 0 to 1000"},
        {"cpu:noise=1001", "from 0 to 1000"},
        {"codec:encode=quick", "expected a size"},
        {"codec:encode=0", "expected a size"},
        {"inter", "TW_COLL_MODEL"},
        {"inter:alpha", "TW_COLL_MODEL"},
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

TEST_F(ModelText, BadVariableFailsTheCommunicator)
{
    set_env("TW_COLL_MODEL", "inter:beta=fast");
    expect_log("TW_COLL_MODEL");
    int node = 0;
    tw_transport_t *transport;
    ASSERT_EQ(tw_transport_local_create(1, &node, &transport), TW_OK);
    tw_coll_params_t params = tw::params_of(transport);
    tw_coll_t *coll;
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_CONFIG);
    tw_transport_destroy(transport);
}

TEST_F(ModelText, FormatIsTheInverseOfParse)
{
    tw_coll_model_t model, again;
    char text[TW_COLL_MODEL_TEXT_BYTES], text_again[TW_COLL_MODEL_TEXT_BYTES];
    ASSERT_EQ(
        tw_coll_model_parse(
            "inter:alpha=123us,beta=957mbit,message=7us,turn=88us,busy=0.25,noise=0.1;node:alpha=3us,beta="
            "33gbit,"
            "noise=12;cpu:copy=9G,reduce=2G,noise=0.02;int8:encode=1G,decode=3G;int4:encode=2G,decode=4G;"
            "lossless:encode_message=21us,decode_message=4us",
            &model),
        TW_OK);
    tw_coll_model_format(&model, text, sizeof(text));
    ASSERT_LT(strlen(text) + 1, sizeof(text));
    ASSERT_EQ(tw_coll_model_parse(text, &again), TW_OK) << text;
    EXPECT_STREQ(tw_coll_model_format(&again, text_again, sizeof(text_again)), text);
    EXPECT_NEAR(again.inter.beta_sec, model.inter.beta_sec, 1e-4 * model.inter.beta_sec);
    EXPECT_NEAR(again.encode_sec[4 * TW_QUANT_INT4], model.encode_sec[4 * TW_QUANT_INT4],
                1e-2 * model.encode_sec[4 * TW_QUANT_INT4]);
    EXPECT_DOUBLE_EQ(again.encode_message_sec, 21e-6);
    EXPECT_DOUBLE_EQ(again.decode_message_sec, 4e-6);
    char small[20];
    EXPECT_EQ(strncmp(tw_coll_model_format(&model, small, sizeof(small)), text, sizeof(small) - 1), 0);
}

} // namespace
