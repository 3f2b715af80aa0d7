/* Matrices made orthogonal: the same in all stages, whoever owns which. */
#include "tests/trainer/engine/job.h"

using Sets = std::vector<std::string>;

class MuonTrains : public tw::Fixture
{
  protected:
    tw::Outcome train(const std::vector<int> &node_of, Sets sets)
    {
        sets.insert(sets.end(), {"optimizer.type=Muon", "thinwire.check_every=2"});
        allow_log("thinwire.check_every means nothing here");
        tw::Outcome outcome = tw::train_on(node_of, sets);
        EXPECT_EQ(outcome.status, TW_OK);
        EXPECT_TRUE(outcome.result.bytes_as_planned);
        EXPECT_TRUE(outcome.result.replicas_equal);
        EXPECT_LT(outcome.result.last_loss, outcome.result.first_loss);
        return outcome;
    }
};

TEST_F(MuonTrains, AllStagesTheSame)
{
    expect_log("nothing here: all ranks are on one node");
    for (const std::vector<int> &node_of : std::vector<std::vector<int>>{{0, 0, 1, 1}, {0, 0, 1}, {0}}) {
        std::vector<double> want, adamw = tw::train_on(node_of, {}).losses();
        for (const Sets &sets :
             std::vector<Sets>{{"zero_optimization.stage=0"},
                               {"zero_optimization.stage=1"},
                               {"zero_optimization.stage=2"},
                               {"zero_optimization.stage=3"},
                               {"thinwire.lossless_gradients=y", "thinwire.lossless_weights=y"}}) {
            SCOPED_TRACE(sets[0]);
            std::vector<double> losses = train(node_of, sets).losses();
            want = want.empty() ? losses : want;
            EXPECT_EQ(losses, want);
        }
        EXPECT_NE(want, adamw);
    }
    std::vector<double> want = train({0, 0, 1, 1}, {"zero_optimization.stage=1"}).losses();
    EXPECT_EQ(train({0, 0, 1, 1}, {"thinwire.hpz=on"}).losses(), want);
    EXPECT_EQ(train({0, 0, 1, 1}, {"thinwire.delta_lossless=y"}).losses(), want);
    EXPECT_EQ(train({0, 0, 1, 1}, {"thinwire.threads=2"}).losses(), want);
}

/* Once, on rank 0, however many matrices there are; fine codes are no matter. */
TEST_F(MuonTrains, RoundedGradientsAreWarnedOf)
{
    const std::string warning = "Muon makes directions that hold only errors as long as all others";
    train({0, 1}, {"thinwire.gradients=int8", "zero_optimization.stage=2"});
    EXPECT_EQ(log_count(warning), 0u);
    expect_log(warning);
    train({0, 1}, {"thinwire.gradients=int4", "zero_optimization.stage=2"});
    EXPECT_EQ(log_count(warning), 1u);
    EXPECT_EQ(tw::train_on({0, 1}, {"thinwire.gradients=int4", "zero_optimization.stage=2"}).status, TW_OK);
    EXPECT_EQ(log_count(warning), 1u);
}

/* Frozen matrices have none; widths need fit no number of ranks. */
TEST_F(MuonTrains, GroupsAndOddShapes)
{
    std::vector<double> plain = train({0, 1, 1}, {"model.n_embd=6", "model.n_layer=1"}).losses();
    EXPECT_EQ(plain,
              train({0, 1, 1}, {"model.n_embd=6", "model.n_layer=1", "zero_optimization.stage=0"}).losses());
    const std::string groups = "thinwire.groups=transformer.h.0.*.weight frozen, transformer.h.1.* lr=0.1";
    EXPECT_EQ(train({0, 1, 1}, {groups}).losses(),
              train({0, 1, 1}, {groups, "zero_optimization.stage=0"}).losses());
    const Sets llama = {"model.family=llama", "model.n_kv_head=1"};
    Sets whole = llama;
    whole.push_back("zero_optimization.stage=0");
    EXPECT_EQ(train({0, 0, 1, 1}, llama).losses(), train({0, 0, 1, 1}, whole).losses());
    expect_log("optimizer.params.muon_lr means nothing here: optimizer.type is not Muon");
    EXPECT_EQ(tw::train(1, 1, {"optimizer.params.muon_lr=0.1"}).status, TW_OK);
}
