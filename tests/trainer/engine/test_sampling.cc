/* Text that is sampled while a model is trained. */
#include <fstream>

#include "tests/trainer/engine/job.h"

using Sets = std::vector<std::string>;

class Sampling : public tw::Fixture
{
  protected:
    tw::Outcome train(int n_nodes, int ranks_per_node, Sets sets, const Sets &more = {})
    {
        sets.insert(sets.end(), more.begin(), more.end());
        tw::Outcome outcome = tw::train(n_nodes, ranks_per_node, sets);
        EXPECT_EQ(TW_OK, outcome.status);
        EXPECT_TRUE(outcome.result.steps == 0 || outcome.result.bytes_as_planned);
        return outcome;
    }

    const Sets sampled_ = {"thinwire.sample_steps=2", "thinwire.sample_lines=2", "thinwire.sample_tokens=20",
                           "thinwire.sample_prompt=the ark"};
};

/* All modes that lose nothing have the same weights, and so the same text; training's losses stay. */
TEST_F(Sampling, AllStagesSampleTheSame)
{
    std::vector<std::string> want;
    std::vector<double> losses = train(2, 2, {}).losses();
    for (const Sets &sets : std::vector<Sets>{{},
                                              {"zero_optimization.stage=0"},
                                              {"zero_optimization.stage=1"},
                                              {"zero_optimization.stage=2"},
                                              {"thinwire.hpz=on"},
                                              {"thinwire.delta_lossless=y", "thinwire.lossless_gradients=y"},
                                              {"thinwire.lossless_weights=y"},
                                              {"thinwire.threads=3"},
                                              {"zero_optimization.offload_param.device=cpu"}}) {
        SCOPED_TRACE(sets.empty() ? "" : sets[0]);
        tw::Outcome outcome = train(2, 2, sampled_, sets);
        want = want.empty() ? outcome.samples : want;
        ASSERT_EQ(4u, outcome.samples.size()); /* 2 lines after steps 2 and 4 */
        EXPECT_EQ(want, outcome.samples);
        EXPECT_EQ(losses, outcome.losses());
    }
    for (size_t i = 0; i < want.size(); i++) {
        EXPECT_EQ(0u, want[i].find(i < 2 ? "2 the ark" : "4 the ark")) << want[i];
    }
    EXPECT_NE(want[0], want[1]);
    EXPECT_NE(want[0].substr(1), want[2].substr(1));
}

/* The weights are gathered once for all lines and tokens, and where replicas or whole weights are in reach no
 * weight leaves a node: only a byte of each rank, twice. */
TEST_F(Sampling, CostsOneGather)
{
    uint64_t plain = train(2, 2, {}).result.inter_node_bytes;
    tw::Outcome outcome = train(2, 2, sampled_);
    double model = 2.0 * (double)outcome.result.n_params;
    EXPECT_NEAR(2 * model, (double)outcome.result.sample_inter_node_bytes, 0.01 * model);
    EXPECT_EQ(plain, outcome.result.inter_node_bytes);
    for (const Sets &sets : std::vector<Sets>{{"zero_optimization.stage=2"}, {"thinwire.delta_lossless=y"}}) {
        EXPECT_GT(500u, train(2, 2, sampled_, sets).result.sample_inter_node_bytes) << sets[0];
    }
}

/* Longer than the sequences that are trained on, a line is continued from its last tokens. */
TEST_F(Sampling, TheLikeliestTokenNeedsNoSeed)
{
    const Sets cold = {"thinwire.sample_temperature=0", "thinwire.sample_tokens=40",
                       "thinwire.sample_steps=5", "thinwire.sample_prompt="};
    tw::Outcome outcome = train(1, 1, sampled_, cold);
    ASSERT_EQ(2u, outcome.samples.size());
    EXPECT_EQ(outcome.samples[0], outcome.samples[1]);
    EXPECT_GE(outcome.samples[0].size(), 2u + 40u);
    tw::Outcome warm = train(1, 1, sampled_, {"thinwire.sample_steps=5", "thinwire.sample_temperature=2"});
    ASSERT_EQ(2u, warm.samples.size());
    EXPECT_NE(warm.samples[0], warm.samples[1]);
}

/* A model of another kind, with as many layers as make the last activation lie in the other place. */
TEST_F(Sampling, OfALlamaWithoutSteps)
{
    const Sets sets = {"model.family=llama", "model.n_kv_head=1", "model.n_layer=1", "thinwire.steps=0"};
    tw::Outcome one = train(1, 1, sampled_, sets), two = train(2, 1, sampled_, sets);
    ASSERT_EQ(2u, one.samples.size());
    EXPECT_EQ(one.samples, two.samples);
    EXPECT_EQ(0u, one.samples[0].find("0 the ark"));
}

TEST_F(Sampling, TokensWithoutAVocabularyAreNumbers)
{
    std::string path = ::testing::TempDir() + "numbers.bin";
    std::ofstream(path) << std::string(2000, '\7'); /* tokens 1799 */
    const Sets sets = {"thinwire.data=" + path,    "model.vocab_size=2000",
                       "thinwire.sample_prompt=",  "thinwire.sample_lines=1",
                       "thinwire.sample_tokens=3", "thinwire.sample_temperature=0"};
    tw::Outcome outcome = train(1, 1, sampled_, sets);
    ASSERT_EQ(2u, outcome.samples.size());
    EXPECT_EQ("4 1799 1799 1799", outcome.samples[1]);
    expect_log("thinwire.sample_prompt: the data are tokens, and no vocabulary says which a text has");
    Sets all = sampled_;
    all.insert(all.end(), {"thinwire.data=" + path, "model.vocab_size=2000"});
    EXPECT_EQ(TW_ERR_CONFIG, tw::train(1, 1, all).status);
    expect_log("thinwire.sample_prompt, document_token: token 300 is none of the model's 257");
    all = sampled_;
    all.push_back("thinwire.document_token=300");
    EXPECT_EQ(TW_ERR_CONFIG, tw::train(1, 1, all).status);
}

TEST_F(Sampling, RanksThatDifferAreNamed)
{
    Sets one = tw::tiny_sets(), other = one;
    one.push_back("thinwire.sample_steps=2");
    expect_log("rank 1: thinwire.sample_steps is '0', on rank 0 it is '2'");
    EXPECT_EQ(std::vector<tw_status_t>(2, TW_ERR_MISMATCH), tw::train_apart(one, other));
    expect_log("thinwire.sample_tokens means nothing here: thinwire.sample_steps is 0");
    other.push_back("thinwire.sample_tokens=2");
    EXPECT_EQ(std::vector<tw_status_t>(2, TW_OK), tw::train_apart(other, other));
}

/* Whole weights are counted where a device is bounded, before anything begins. */
TEST_F(Sampling, NeedsRoomOnTheDevice)
{
    tw::Outcome plain = train(2, 1, {});
    const Sets sets = {"thinwire.device_mem=" + std::to_string(plain.result.device_bytes + 1000)};
    train(2, 1, sets);
    Sets all = sampled_;
    all.insert(all.end(), sets.begin(), sets.end());
    expect_log("rank 0: ");
    allow_log("are needed on the device");
    allow_log("gave the job up");
    EXPECT_NE(TW_OK, tw::train(2, 1, all).status);
}
