/* Routes: every shard reaches every rank, once, along a tree; and the order of messages between two ranks is
 * the same on both. */
#include <map>
#include <set>

#include "collectives/communicator.h"
#include "collectives/quantized/gather.h"
#include "tests/collectives/sweep.h"
#include "tests/common/fixture.h"

namespace
{

class Spread : public tw::Fixture
{
  protected:
    struct Shape {
        explicit Shape(const std::vector<int> &node_of)
        {
            std::vector<uint64_t> ids(node_of.begin(), node_of.end());
            EXPECT_EQ(tw_topo_init_nodes(&topo, 0, (int)node_of.size(), ids.data()), TW_OK);
        }
        ~Shape()
        {
            tw_topo_cleanup(&topo);
        }
        tw_topo_t topo;
    };
};

const std::map<std::string, const tw_route_t *> routes = {
    {"ring", &tw_route_ring}, {"nodes", &tw_route_nodes}, {"direct", &tw_route_direct}};

TEST_F(Spread, ParentsLeadToTheOwner)
{
    for (const std::vector<int> &node_of : tw::all_worlds()) {
        Shape shape(node_of);
        const tw_topo_t *topo = &shape.topo;
        for (const auto &[name, route] : routes) {
            for (int owner = 0; owner < topo->world; owner++) {
                EXPECT_EQ(route->step(topo, owner, owner), 0) << name;
                for (int rank = 0; rank < topo->world; rank++) {
                    int at = rank, hops = 0;
                    while (at != owner && hops <= topo->world) {
                        int parent = route->parent(topo, owner, at);
                        ASSERT_TRUE(parent >= 0 && parent < topo->world && parent != at) << name;
                        EXPECT_LE(route->step(topo, owner, parent), route->step(topo, owner, at)) << name;
                        at = parent;
                        hops++;
                    }
                    EXPECT_EQ(at, owner) << name << ": from " << rank << " in a world of " << topo->world;
                    int step = route->step(topo, owner, rank);
                    EXPECT_TRUE(step >= 0 && step < topo->world) << name;
                }
            }
        }
    }
}

/* The ring and the route over nodes enter a node once with each shard. */
TEST_F(Spread, AShardEntersANodeOnce)
{
    for (const std::vector<int> &node_of : tw::all_worlds()) {
        Shape shape(node_of);
        const tw_topo_t *topo = &shape.topo;
        for (const char *name : {"ring", "nodes"}) {
            const tw_route_t *route = routes.at(name);
            for (int owner = 0; owner < topo->world; owner++) {
                int entries = 0;
                for (int rank = 0; rank < topo->world; rank++) {
                    entries +=
                        rank != owner && topo->node[route->parent(topo, owner, rank)] != topo->node[rank];
                }
                /* the owner's own node is left and, by the ring, may be entered again at its other ranks */
                EXPECT_GE(entries, topo->n_nodes - 1) << name;
                EXPECT_LE(entries, topo->n_nodes - 1 + (std::string(name) == "ring")) << name;
            }
        }
    }
}

/* What a rank gets from another one, in the order of its steps, is in the order in which that one got it. */
TEST_F(Spread, BothEndsAgreeOnTheOrder)
{
    for (const std::vector<int> &node_of : tw::all_worlds()) {
        Shape shape(node_of);
        const tw_topo_t *topo = &shape.topo;
        for (const auto &[name, route] : routes) {
            for (int rank = 0; rank < topo->world; rank++) {
                std::map<int, std::map<int, std::set<int>>> got; /* parent, own step: the parent's steps */
                for (int owner = 0; owner < topo->world; owner++) {
                    if (owner == rank) {
                        continue;
                    }
                    int parent = route->parent(topo, owner, rank);
                    got[parent][route->step(topo, owner, rank)].insert(route->step(topo, owner, parent));
                }
                for (const auto &[parent, steps] : got) {
                    int last = -1;
                    for (const auto &[step, theirs] : steps) {
                        EXPECT_GE(*theirs.begin(), last) << name << ": " << parent << " to " << rank;
                        last = *theirs.rbegin();
                    }
                }
            }
        }
    }
}

} // namespace
