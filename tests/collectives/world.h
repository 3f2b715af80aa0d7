/** Ranks as threads over the local transport, each with a communicator. */
#ifndef TW_TESTS_COLLECTIVES_WORLD_H
#define TW_TESTS_COLLECTIVES_WORLD_H

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/collectives.h"
#include "tests/common/fixture.h"
#include "tests/transport/local.h"

namespace tw
{

/** The node of each rank, in rank order, where node n has ranks_per_node[n] ranks. */
inline std::vector<int> nodes_of(const std::vector<int> &ranks_per_node)
{
    std::vector<int> nodes;
    for (size_t n = 0; n < ranks_per_node.size(); n++) {
        nodes.insert(nodes.end(), (size_t)ranks_per_node[n], (int)n);
    }
    return nodes;
}

inline tw_coll_params_t params_of(tw_transport_t *transport, const int *ranks = nullptr, int n_ranks = 0,
                                  int id = 0)
{
    tw_coll_params_t params = {};
    params.transport = transport;
    params.ranks = ranks;
    params.n_ranks = n_ranks;
    params.id = id;
    return params;
}

/** What an operation became. */
struct Plan {
    tw_coll_plan_t plan = {};
    std::string reason;

    void take(const tw_coll_request_t *request)
    {
        tw_coll_request_plan(request, &plan);
        reason = plan.reason;
        plan.reason = reason.c_str();
    }
};

/** Post and wait. */
inline tw_status_t run_and_note(tw_coll_t *coll, const tw_coll_args_t *args, Plan *plan)
{
    tw_coll_request_t *request;
    tw_status_t status = tw_coll_post(coll, args, &request);
    if (status != TW_OK) {
        return status;
    }
    plan->take(request);
    return tw_coll_wait(request);
}

class World
{
  public:
    explicit World(const std::vector<int> &node_of, int id = 0)
        : transports(node_of.size()), colls(node_of.size()), plans(node_of.size())
    {
        /* not measured, unless the test wants it: quicker, and the same choices every time */
        ScopedEnv model("TW_COLL_MODEL",
                        getenv("TW_COLL_MODEL") ? getenv("TW_COLL_MODEL") : "inter:beta=1gbit");
        EXPECT_EQ(tw_transport_local_create((int)node_of.size(), node_of.data(), transports.data()), TW_OK);
        run([&](int rank) {
            tw_coll_params_t params = params_of(transports[(size_t)rank], nullptr, 0, id);
            EXPECT_EQ(tw_coll_create(&params, &colls[(size_t)rank]), TW_OK);
        });
    }
    World(const World &) = delete;
    World &operator=(const World &) = delete;
    ~World()
    {
        for (tw_coll_t *coll : colls) {
            tw_coll_destroy(coll);
        }
        for (tw_transport_t *transport : transports) {
            tw_transport_destroy(transport);
        }
    }
    int size() const
    {
        return (int)transports.size();
    }
    tw_coll_t *coll(int rank) const
    {
        return colls[(size_t)rank];
    }
    tw_transport_t *transport(int rank) const
    {
        return transports[(size_t)rank];
    }
    /** Post and wait, as a rank. */
    tw_status_t run(int rank, const tw_coll_args_t *args)
    {
        return run_and_note(coll(rank), args, &plans[(size_t)rank]);
    }
    /** The plan of what the rank ran last. */
    const tw_coll_plan_t &plan(int rank) const
    {
        return plans[(size_t)rank].plan;
    }
    void destroy(int rank)
    {
        tw_coll_destroy(colls[(size_t)rank]);
        colls[(size_t)rank] = nullptr;
    }
    /** Run body(rank) on a thread per rank. */
    void run(const std::function<void(int)> &body)
    {
        std::vector<std::thread> threads;
        for (int r = 0; r < size(); r++) {
            threads.emplace_back(body, r);
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
    }

  private:
    std::vector<tw_transport_t *> transports;
    std::vector<tw_coll_t *> colls;
    std::vector<Plan> plans;
};

} // namespace tw

#endif
