/* A process that a rank forks can neither use the rank's communicators nor harm its job. */
#include <sys/wait.h>

#include <cstdlib>

#include "collectives/collectives.h"
#include "tests/collectives/processes.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"
#include "transport/transport.h"

namespace
{

constexpr int LIMIT_SEC = 60, CHILD_LIMIT_SEC = 20;

class Forked : public tw::Fixture
{
};

tw_coll_args_t barrier()
{
    tw_coll_args_t args = {};
    args.op = TW_COLL_BARRIER;
    return args;
}

/* Every call of a communicator that could wait, send or take a lock. `under_way` was posted by the parent.
 * Returns which one is not refused. */
int refused_in_child(tw_coll_t *coll, tw_coll_request_t *under_way)
{
    const tw_coll_args_t args = barrier();
    const int self = tw_coll_rank(coll);
    tw_coll_request_t *request = nullptr;
    tw_coll_t *group = nullptr;
    tw_coll_counters_t counters;
    uint64_t bytes;
    if (tw_coll_run(coll, &args) != TW_ERR_INVALID || tw_coll_post(coll, &args, &request) != TW_ERR_INVALID) {
        return 1;
    }
    if (tw_coll_test(under_way) != TW_ERR_INVALID || tw_coll_wait(under_way) != TW_ERR_INVALID) {
        return 2;
    }
    if (tw_coll_progress(coll) != TW_ERR_INVALID || tw_coll_prepare(coll, &args) != TW_ERR_INVALID) {
        return 3;
    }
    if (tw_coll_group_create(coll, &self, 1, &group) == TW_OK) {
        return 4;
    }
    tw_coll_counters_get(coll, &counters);
    if (tw_coll_planned_inter_node_bytes(coll, &args, &bytes) != TW_ERR_INVALID) {
        return 5;
    }
    (void)tw_coll_workspace_bytes(coll);
    tw_coll_trim(coll);
    tw_coll_abort(coll);
    tw_coll_destroy(coll);
    return 0;
}

/* Forks while an operation is under way; afterwards the job goes on as if nothing had been. */
std::string fork_and_go_on(tw_coll_t *coll)
{
    const tw_coll_args_t args = barrier();
    tw_coll_request_t *request;
    if (tw_coll_run(coll, &args) != TW_OK || tw_coll_post(coll, &args, &request) != TW_OK) {
        return "no operation before the fork";
    }
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_LIMIT_SEC);
        _exit(refused_in_child(coll, request));
    }
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0) {
        return "the child: " + std::to_string(status);
    }
    for (int i = 0; i < 3; i++) {
        if (i == 0 ? tw_coll_wait(request) != TW_OK : tw_coll_run(coll, &args) != TW_OK) {
            return "the parent's job has ended";
        }
    }
    return "";
}

TEST_F(Forked, CannotUseACommunicator)
{
    EXPECT_EQ(tw::run_processes(tw::nodes_of({1, 1}), fork_and_go_on, LIMIT_SEC, 0), "");
}

TEST_F(Forked, CannotUseOneWithAProgressThread)
{
    EXPECT_EQ(tw::run_processes(tw::nodes_of({1, 1}), fork_and_go_on, LIMIT_SEC, 1), "");
}

TEST_F(Forked, CannotUseOneWithinANode)
{
    EXPECT_EQ(tw::run_processes(tw::nodes_of({2}), fork_and_go_on, LIMIT_SEC, 1), "");
}

} // namespace
