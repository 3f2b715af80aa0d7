/** What srun sets for the tasks of a job. */
#ifndef TW_TESTS_TRAINER_SLURM_H
#define TW_TESTS_TRAINER_SLURM_H

#include <map>
#include <string>

#include <unistd.h>

namespace slurm
{

constexpr int n_tasks = 4;

/** The environment of a task on two nodes of two, which are one machine. The job's id is this process's. */
inline std::map<std::string, std::string> task_env(int task)
{
    return {{"SLURM_JOB_ID", std::to_string(getpid())},
            {"SLURM_STEP_ID", "0"},
            {"SLURM_NTASKS", std::to_string(n_tasks)},
            {"SLURM_STEP_NUM_TASKS", std::to_string(n_tasks)},
            {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
            {"SLURM_STEP_NODELIST", "localhost,other"},
            {"SLURM_PROCID", std::to_string(task)},
            {"SLURM_LOCALID", std::to_string(task % 2)},
            {"SLURM_NODEID", std::to_string(task / 2)},
            {"TW_NODE_ID", std::to_string(task / 2)},
            {"TW_NET_DEVICES", "lo"}};
}

} // namespace slurm

#endif
