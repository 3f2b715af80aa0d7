/* Where a rank is that is only planned. */
#include <climits>

#include "tests/hpz/replicas.h"

namespace
{

using HpzPlace = tw::Fixture;

TEST_F(HpzPlace, ThatCannotBeIsRefused)
{
    const tw_hpz_place_t wrong[] = {{0, 0, 0},  {0, 0, 1}, {0, 1, 0},       {0, -1, -1},     {0, -1, 1},
                                    {-1, 1, 1}, {6, 2, 3}, {0, 1, INT_MIN}, {0, INT_MAX, 2}, {INT_MAX, 1, 1}};
    for (const tw_hpz_place_t &place : wrong) {
        tw_hpz_params_t params = {};
        tw_hpz_t *hpz = nullptr;
        params.place = place;
        expect_log("there is no rank " + std::to_string(place.rank) + " on ");
        EXPECT_EQ(tw_hpz_create(&params, &hpz), TW_ERR_INVALID)
            << place.rank << " of " << place.n_nodes << " x " << place.ranks_per_node;
        EXPECT_EQ(hpz, nullptr);
    }
}

TEST_F(HpzPlace, ACodecThatIsNoneIsRefused)
{
    tw_hpz_params_t params = {};
    tw_hpz_t *hpz = nullptr;
    params.place = {0, 1, 1};
    params.replicas = 1;
    params.delta.kind = TW_QUANT_KINDS;
    expect_log("there is no codec");
    EXPECT_EQ(tw_hpz_create(&params, &hpz), TW_ERR_INVALID);
    EXPECT_EQ(hpz, nullptr);
}

TEST_F(HpzPlace, IsCountedNodeByNode)
{
    tw_hpz_params_t params = {};
    tw_hpz_t *hpz = nullptr;
    params.place = {5, 2, 3};
    ASSERT_EQ(tw_hpz_create(&params, &hpz), TW_OK);
    EXPECT_EQ(tw_hpz_node(hpz), 1);
    EXPECT_EQ(tw_hpz_local(hpz), 2);
    tw_hpz_destroy(hpz);
}

} // namespace
