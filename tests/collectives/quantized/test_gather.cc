/* Quantized all-gather: every rank ends with decode(encode(shard)), bit for bit. */
#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

class QuantAllgather : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    }
};

const char *const algos[] = {"ring", "hierarchical", "direct"};

TEST_F(QuantAllgather, EveryWorldAndSize)
{
    set_env("TW_COLL_CHUNK", "1K");
    for (int w = 1; w <= 8; w++) {
        tw::World world(tw::nodes_of(std::vector<int>((size_t)w, 1)));
        for (const char *algo : algos) {
            tw::Case c;
            c.algo = algo;
            for (size_t n : {0, 1, 2, 7, 257, 4099, 30011}) {
                c.sizes = {n};
                c.in_place = n % 2 == 1;
                check_case(world, c);
            }
        }
    }
}

TEST_F(QuantAllgather, EveryGrid)
{
    set_env("TW_COLL_CHUNK", "1K");
    const std::vector<std::vector<int>> grids = {{2, 2}, {3, 3}, {2, 2, 2}, {4, 4},
                                                 {4},    {3, 1}, {1, 2, 4}, {2, 1, 1}};
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        for (const char *algo : algos) {
            tw::Case c;
            c.algo = algo;
            c.sizes = {20011, 3, 0, 1, 4096, 700};
            check_case(world, c);
            c.codec = "int4:block=32";
            c.in_place = true;
            check_case(world, c);
        }
    }
}

TEST_F(QuantAllgather, EveryTypeAndCodec)
{
    set_env("TW_COLL_CHUNK", "4K");
    tw::World world(tw::nodes_of({2, 1}));
    for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16}) {
        for (const std::string &codec : tw::codec_texts(false)) {
            tw::Case c;
            c.type = type;
            c.codec = codec;
            c.algo = "hierarchical";
            c.sizes = {50021, 5};
            check_case(world, c);
        }
    }
}

TEST_F(QuantAllgather, UnevenShards)
{
    set_env("TW_COLL_CHUNK", "1K");
    tw::World world(tw::nodes_of({2, 1, 1}));
    for (const char *algo : algos) {
        tw::Case c;
        c.algo = algo;
        c.sizes = {10000, 3, 0, 7001};
        c.counts = {{0, 9000, 0, 1000}, {0, 0, 3, 0}, {0, 0, 0, 0}, {1, 0, 7000, 0}};
        check_case(world, c);
    }
}

TEST_F(QuantAllgather, ManyTinySegments)
{
    tw::World world(tw::nodes_of({2, 2}));
    tw::Case c;
    for (size_t s = 0; s < 300; s++) {
        c.sizes.push_back(s % 7);
    }
    for (const char *algo : algos) {
        c.algo = algo;
        check_case(world, c);
    }
}

TEST_F(QuantAllgather, LargeTensor)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    tw::Case c;
    c.algo = "ring";
    c.codec = "int4";
    c.sizes = {(4 << 20) + 13};
    check_case(world, c);
}

} // namespace
