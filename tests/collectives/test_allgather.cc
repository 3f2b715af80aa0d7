/* Exact all-gather. */
#include <cstring>

#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

using Allgather = tw::Fixture;

TEST_F(Allgather, RingSmoke)
{
    for (int w = 1; w <= 8; w++) {
        tw::World world(tw::nodes_of(std::vector<int>((size_t)w, 1)));
        for (size_t n : {0, 1, 7, 8, 9, 1009, 1 << 21}) {
            std::vector<std::vector<uint16_t>> out((size_t)w, std::vector<uint16_t>(n));
            world.run([&](int rank) {
                size_t first = tw_coll_shard_offset(n, w, rank), mine = tw_coll_shard_elems(n, w, rank);
                std::vector<uint16_t> in(mine);
                for (size_t i = 0; i < mine; i++)
                    in[i] = (uint16_t)((first + i) * 2654435761u >> 7);
                tw_coll_segment_t segment = {};
                segment.src = in.data();
                segment.dst = out[(size_t)rank].data();
                segment.n_elems = n;
                tw_coll_args_t args = {};
                args.op = TW_COLL_ALLGATHER;
                args.type = TW_TYPE_BF16;
                args.segments = &segment;
                args.n_segments = 1;
                args.algo = "ring";
                EXPECT_EQ(tw_coll_run(world.coll(rank), &args), TW_OK);
            });
            for (int r = 0; r < w; r++)
                for (size_t i = 0; i < n; i++)
                    ASSERT_EQ(out[(size_t)r][i], (uint16_t)(i * 2654435761u >> 7))
                        << w << " " << n << " " << r << " " << i;
        }
    }
}

} // namespace
