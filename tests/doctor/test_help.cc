/* Whether Thinwire helps, of made-up figures, and beside what the planner says. */
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "doctor/help.h"
#include "tests/common/fixture.h"
#include "trainer/plan/plan.h"
#include "trainer/trainer.h"

namespace
{

constexpr double kParams = 1e9;

/* Nodes that send so many bytes a second while all do, on each of two devices; ranks that encode so many. */
class Help : public tw::Fixture
{
  protected:
    tw_doctor_result_t cluster(const std::vector<double> &link_Bps, int ranks_per_node = 1, double GBps = 2)
    {
        const int n_nodes = (int)link_Bps.size();
        tw_doctor_facts_t one = {};
        for (double &speed : one.encode_GBps) {
            speed = GBps;
        }
        facts_.assign((size_t)(n_nodes * ranks_per_node), one);
        leaders_.clear();
        flows_.clear();
        for (int node = 0; node < n_nodes; node++) {
            leaders_.push_back(node * ranks_per_node);
            for (int device = 0; device < 2 && n_nodes > 1; device++) {
                add(TW_DOCTOR_ALL, node, device, 8 * link_Bps[(size_t)node] / 2);
            }
            add(TW_DOCTOR_PAIR, node, 0, 1e15); /* alone it is faster, which helps no job */
        }
        return {(int)facts_.size(),
                n_nodes,
                (int)flows_.size(),
                0,
                facts_.data(),
                leaders_.data(),
                flows_.data(),
                nullptr,
                0,
                0,
                0,
                0};
    }

    static std::string said(const tw_doctor_result_t &result)
    {
        ::testing::internal::CaptureStdout();
        const tw_doctor_links_t links = tw_doctor_links_of(&result);
        tw_doctor_print_steps(&links, result.n_params);
        tw_doctor_print_help(&links, result.n_params);
        fflush(stdout);
        return ::testing::internal::GetCapturedStdout();
    }

    static bool has(const std::string &text, const std::string &part)
    {
        return text.find(part) != std::string::npos;
    }

    std::vector<tw_doctor_facts_t> facts_;

  private:
    void add(int kind, int from, int device, double bps)
    {
        tw_doctor_flow_t flow = {};
        flow.kind = kind;
        flow.from = from;
        flow.device = device;
        flow.bps = bps;
        flows_.push_back(flow);
    }

    std::vector<int> leaders_;
    std::vector<tw_doctor_flow_t> flows_;
};

/* All devices of the slowest node, while all send; the slowest rank's codecs. */
TEST_F(Help, AStepGoesAtThePaceOfTheSlowest)
{
    const tw_doctor_result_t result = cluster({3e6, 1e6, 2e6}, 2);
    facts_[3].encode_GBps[0] = 0.5;
    const tw_doctor_links_t links = tw_doctor_links_of(&result);
    EXPECT_EQ(3, links.n_nodes);
    EXPECT_EQ(2, links.ranks_per_node);
    EXPECT_DOUBLE_EQ(1e6, links.link_Bps);
    EXPECT_DOUBLE_EQ(0.5e9, links.encode_Bps[0]);
    EXPECT_DOUBLE_EQ(2e9, links.encode_Bps[1]);
}

TEST_F(Help, ASlowLinkIsAllThereIs)
{
    const tw_doctor_links_t links = {2, 4, 12.5e6, {INFINITY, INFINITY, INFINITY, INFINITY}};
    const tw_doctor_step_t step = tw_doctor_step_of(&links, kParams);
    EXPECT_DOUBLE_EQ(6 * kParams / 2 / 12.5e6, step.plain_sec);
    EXPECT_NEAR(step.plain_sec * 13.4 / 48, step.lossless_sec, 1e-9);
    EXPECT_NEAR(step.plain_sec * 6.2 / 48, step.ecdq_sec, 0.1 / 48 * step.plain_sec);
    EXPECT_NEAR(step.plain_sec * 7.125 / 48, step.int4_sec, 1e-9);
}

/* A rank of four in a node: a quarter of the node's. */
TEST_F(Help, OnAFastLinkCodecsAreAllThereIs)
{
    const tw_doctor_links_t links = {2, 4, 1e15, {0, 8e9, 2e9, 1e9}};
    const tw_doctor_step_t step = tw_doctor_step_of(&links, kParams);
    EXPECT_DOUBLE_EQ((2 + 2) * kParams / 4 / 2e9, step.lossless_sec);
    EXPECT_DOUBLE_EQ(2 * kParams / 4 / 2e9 + 2 * kParams / 4 / 1e9, step.ecdq_sec);
    EXPECT_DOUBLE_EQ(2 * kParams / 4 / 2e9 + 2 * kParams / 4 / 8e9, step.int4_sec);
}

/* What the planner says of the same sets on such links. */
TEST_F(Help, ThePlannerSaysTheSame)
{
    const tw_model_config_t shape = {256, 64, 6, 2, 128, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    const tw_doctor_links_t links = {2, 2, 12.5e6, {INFINITY, INFINITY, INFINITY, INFINITY}};
    tw_plan_cluster_t cluster = tw_plan_cluster_of(4, 2);
    tw_model_t *model;
    cluster.delta_bits = 3;
    ASSERT_EQ(TW_OK, tw_model_create(&shape, &model));
    const tw_doctor_step_t step = tw_doctor_step_of(&links, (double)tw_model_n_params(model));
    const struct {
        const char *set;
        double sec;
    } rows[] = {{"zero3", step.plain_sec},
                {"lossless", step.lossless_sec},
                {"delta-ecdq-half", step.ecdq_sec},
                {"delta-g4", step.int4_sec}};
    for (const auto &row : rows) {
        const tw_trainer_set_t *set = tw_trainer_set_find(row.set);
        size_t n = 0;
        while (set->keys[n]) {
            n++;
        }
        tw_train_config_t *config;
        tw_plan_traffic_t traffic;
        ASSERT_EQ(TW_OK, tw_train_config_create(nullptr, set->keys, n, &config));
        ASSERT_EQ(TW_OK, tw_train_config_resolve(config, 4, 2));
        ASSERT_EQ(TW_OK, tw_plan_traffic_of(tw_train_config_options(config), model, &cluster, &traffic));
        EXPECT_NEAR(1, row.sec / (traffic.step.inter_node / 2 / links.link_Bps), 0.03) << row.set;
        tw_plan_traffic_cleanup(&traffic);
        tw_train_config_destroy(config);
    }
    tw_model_destroy(model);
}

TEST_F(Help, ASlowLinkIsToldWhatToType)
{
    tw_doctor_result_t result = cluster({11.9e6, 11.9e6});
    std::string text = said(result);
    EXPECT_TRUE(has(text, "\n  124 M ")) << text;
    EXPECT_TRUE(has(text, "\n  70 G ")) << text;
    EXPECT_TRUE(has(text, "\nthinwire: a step of 1 G parameters takes 252 s on these links, with Thinwire "
                          "70.4 s"))
        << text;
    EXPECT_TRUE(has(text, ": type TW_FSDP=1 torchrun")) << text;
    result.n_params = 7.6e9;
    text = said(result);
    EXPECT_TRUE(has(text, "\nthinwire: a step of 7.6 G parameters")) << text;
    EXPECT_FALSE(has(text, "\n  124 M ")) << text;
}

/* Where a core takes longer to code gradients without loss than the link to carry them as they are. */
TEST_F(Help, FourBitsMayHelpAlone)
{
    const tw_doctor_result_t result = cluster({1.25e9, 1.25e9});
    facts_[0].encode_GBps[1] = facts_[1].encode_GBps[1] = 10;
    for (tw_doctor_facts_t &facts : facts_) {
        facts.encode_GBps[2] = facts.encode_GBps[3] = 1.6;
    }
    const std::string text = said(result);
    EXPECT_TRUE(has(text, ": type TW_FSDP=1 TW_GRADS=int4 torchrun")) << text;
}

TEST_F(Help, AFastLinkNeedsNoHelp)
{
    const std::string text = said(cluster({12.5e9, 12.5e9}));
    EXPECT_TRUE(has(text, "it will not help you")) << text;
    EXPECT_FALSE(has(text, "type ")) << text;
}

TEST_F(Help, WithoutLinksThereIsNothingToSay)
{
    EXPECT_EQ("thinwire: one node: no byte crosses a network, and it will not help you\n",
              said(cluster({1e6})));
    EXPECT_EQ("thinwire: not all links carry anything: first what stands above\n", said(cluster({1e6, 0})));
}

} // namespace
