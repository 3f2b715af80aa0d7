/** Small runs of the trainer, the ranks as threads over the local transport. */
#ifndef TW_TESTS_TRAINER_ENGINE_JOB_H
#define TW_TESTS_TRAINER_ENGINE_JOB_H

#include <string>
#include <vector>

#include "tests/common/fixture.h"
#include "tests/trainer/engine/ranks.h"
#include "trainer/trainer.h"

namespace tw
{

/** What a run gave on rank 0. */
struct Outcome {
    tw_status_t status = TW_ERR_INTERNAL; /**< of the first rank that failed */
    tw_trainer_result_t result = {};
    std::vector<tw_trainer_step_t> steps;
    std::vector<std::string> samples; /**< "STEP TEXT" */

    std::vector<double> losses() const
    {
        std::vector<double> out;
        for (const tw_trainer_step_t &step : steps) {
            out.push_back(step.loss);
        }
        return out;
    }
    /** Bytes between nodes in a step. */
    double bytes_per_step() const
    {
        return (double)result.inter_node_bytes / (double)result.steps;
    }
};

/** 1 + 1 ranks with different sets: their statuses. */
std::vector<tw_status_t> train_apart(const std::vector<std::string> &one,
                                     const std::vector<std::string> &other);

/** n_nodes x ranks_per_node ranks train a tiny GPT on a made-up text; sets as of --set. All ranks must report
 *  the same. */
Outcome train(int n_nodes, int ranks_per_node, const std::vector<std::string> &sets);

/** The same, and expects that all went well: bytes as planned, replicas equal. */
Outcome train_well(int n_nodes, int ranks_per_node, const std::vector<std::string> &sets);

/** As train, where they are put: node_of as above. */
Outcome train_on(const std::vector<int> &node_of, const std::vector<std::string> &sets);

/** The same, where each rank has sets of its own besides: own [ranks]. */
Outcome train_with(const std::vector<int> &node_of, const std::vector<std::string> &sets,
                   const std::vector<std::vector<std::string>> &own);

} // namespace tw

#endif
