#include "tests/trainer/engine/job.h"

namespace tw
{

static void note(void *ctx, const tw_trainer_step_t *step)
{
    static_cast<Outcome *>(ctx)->steps.push_back(*step);
}

static void note_sample(void *ctx, uint64_t step, const char *text)
{
    static_cast<Outcome *>(ctx)->samples.push_back(std::to_string(step) + " " + text);
}

std::vector<tw_status_t> train_apart(const std::vector<std::string> &one,
                                     const std::vector<std::string> &other)
{
    std::vector<tw_status_t> statuses(2);
    run_ranks({0, 1}, [&](int rank, tw_coll_t *coll) {
        std::vector<const char *> pointers;
        for (const std::string &set : rank == 0 ? one : other) {
            pointers.push_back(set.c_str());
        }
        tw_trainer_params_t params = {};
        tw_trainer_result_t result;
        params.sets = pointers.data();
        params.n_sets = pointers.size();
        params.coll = coll;
        statuses[(size_t)rank] = tw_trainer_run(&params, &result);
    });
    return statuses;
}

Outcome train(int n_nodes, int ranks_per_node, const std::vector<std::string> &sets)
{
    std::vector<int> node_of;
    for (int rank = 0; rank < n_nodes * ranks_per_node; rank++) {
        node_of.push_back(rank / ranks_per_node);
    }
    return train_on(node_of, sets);
}

Outcome train_well(int n_nodes, int ranks_per_node, const std::vector<std::string> &sets)
{
    Outcome outcome = train(n_nodes, ranks_per_node, sets);
    EXPECT_EQ(outcome.status, TW_OK);
    EXPECT_TRUE(outcome.result.bytes_as_planned);
    EXPECT_TRUE(outcome.result.replicas_equal);
    return outcome;
}

Outcome train_on(const std::vector<int> &node_of, const std::vector<std::string> &sets)
{
    return train_with(node_of, sets, std::vector<std::vector<std::string>>(node_of.size()));
}

Outcome train_with(const std::vector<int> &node_of, const std::vector<std::string> &sets,
                   const std::vector<std::vector<std::string>> &own)
{
    std::vector<Outcome> outcomes(node_of.size());
    run_ranks(node_of, [&](int rank, tw_coll_t *coll) {
        Outcome &outcome = outcomes[(size_t)rank];
        std::vector<std::string> all = tiny_sets();
        all.insert(all.end(), sets.begin(), sets.end());
        all.insert(all.end(), own[(size_t)rank].begin(), own[(size_t)rank].end());
        std::vector<const char *> pointers;
        for (const std::string &set : all) {
            pointers.push_back(set.c_str());
        }
        tw_trainer_params_t params = {};
        params.sets = pointers.data();
        params.n_sets = pointers.size();
        params.coll = coll;
        params.on_step = note;
        params.on_sample = note_sample;
        params.ctx = &outcome;
        outcome.status = tw_trainer_run(&params, &outcome.result);
    });
    for (const Outcome &outcome : outcomes) {
        EXPECT_EQ(outcome.losses(), outcomes[0].losses());
        EXPECT_TRUE(&outcome == &outcomes[0] || outcome.samples.empty());
        if (outcome.status != TW_OK) {
            outcomes[0].status = outcome.status;
        }
    }
    return outcomes[0];
}

} // namespace tw
