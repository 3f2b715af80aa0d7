/** Ranks as threads over the local transport, each with a communicator. */
#ifndef TW_TESTS_COLLECTIVES_WORLD_H
#define TW_TESTS_COLLECTIVES_WORLD_H

#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "collectives/collectives.h"
#include "tests/common/fixture.h"

namespace tw
{

/** node[n] ranks on node n, in rank order. */
inline std::vector<int> nodes_of(const std::vector<int> &ranks_per_node)
{
    std::vector<int> nodes;
    for (size_t n = 0; n < ranks_per_node.size(); n++) {
        nodes.insert(nodes.end(), (size_t)ranks_per_node[n], (int)n);
    }
    return nodes;
}

class World
{
  public:
    explicit World(const std::vector<int> &node_of, int id = 0)
        : transports(node_of.size()), colls(node_of.size())
    {
        /* not measured, unless the test wants it: quicker, and the same choices every time */
        ScopedEnv model("TW_COLL_MODEL",
                        getenv("TW_COLL_MODEL") ? getenv("TW_COLL_MODEL") : "inter:beta=1gbit");
        EXPECT_EQ(tw_transport_local_create((int)node_of.size(), node_of.data(), transports.data()), TW_OK);
        run([&](int rank) {
            tw_coll_params_t params = {transports[(size_t)rank], nullptr, 0, id};
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
};

} // namespace tw

#endif
