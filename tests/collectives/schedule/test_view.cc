/* Views. */
#include <cstring>
#include <vector>

#include "collectives/schedule/schedule.h"
#include "tests/common/fixture.h"

namespace
{

using View = tw::Fixture;

TEST_F(View, NeighboursInMemoryAreOneExtent)
{
    tw_view_t view;
    tw_view_extent_t extents[4];
    char memory[100] = {};
    tw_view_init(&view, 2, extents);
    tw_view_append(&view, memory, 10);
    tw_view_append(&view, memory + 20, 5);
    tw_view_append(&view, memory + 90, 0);
    EXPECT_EQ(view.n_extents, 1u);
    tw_view_append(&view, memory + 31, 3);
    EXPECT_EQ(view.n_extents, 2u);
    EXPECT_EQ(view.n_elems, 18u);
    EXPECT_EQ(tw_view_contiguous(&view, 3, 12), memory + 6);
    EXPECT_EQ(tw_view_contiguous(&view, 3, 13), nullptr);
    EXPECT_EQ(tw_view_contiguous(&view, 15, 3), memory + 31);
}

/* Every range of a view of pieces of all small sizes. */
TEST_F(View, ReadsAndWritesEveryRange)
{
    std::vector<std::vector<uint32_t>> pieces;
    std::vector<uint32_t> all;
    tw_view_t view;
    tw_view_extent_t extents[8];
    tw_view_init(&view, 4, extents);
    for (size_t n : {3, 1, 0, 7, 2, 1, 5, 0}) {
        pieces.emplace_back(n + 1); /* never neighbours */
        for (size_t i = 0; i < n; i++) {
            pieces.back()[i] = (uint32_t)(all.size() * 1000003);
            all.push_back(pieces.back()[i]);
        }
        tw_view_append(&view, pieces.back().data(), n);
    }
    ASSERT_EQ(view.n_elems, all.size());
    for (size_t first = 0; first <= all.size(); first++) {
        for (size_t n = 0; first + n <= all.size(); n++) {
            std::vector<uint32_t> out(n + 1, 77);
            tw_view_read(&view, first, n, out.data());
            EXPECT_EQ(std::vector<uint32_t>(out.begin(), out.begin() + (long)n),
                      std::vector<uint32_t>(all.begin() + (long)first, all.begin() + (long)(first + n)));
            EXPECT_EQ(out[n], 77u);
            for (size_t i = 0; i < n; i++) {
                all[first + i] = out[i] = (uint32_t)(out[i] + first + 1);
            }
            tw_view_write(&view, first, n, out.data());
        }
    }
    std::vector<uint32_t> now(all.size());
    tw_view_read(&view, 0, all.size(), now.data());
    EXPECT_EQ(now, all);
    for (const std::vector<uint32_t> &piece : pieces) {
        EXPECT_EQ(piece.back(), 0u); /* nothing was written behind an extent */
    }
}

TEST_F(View, Empty)
{
    tw_view_t view;
    tw_view_init(&view, 4, nullptr);
    tw_view_append(&view, nullptr, 0);
    tw_view_read(&view, 0, 0, nullptr);
    tw_view_write(&view, 0, 0, nullptr);
    EXPECT_EQ(view.n_elems, 0u);
}

} // namespace
