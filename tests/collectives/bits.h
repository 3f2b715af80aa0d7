/** The bits that algorithms give by name, as they were recorded (recorded_bits.h): a change of them is a
 *  change for users. */
#ifndef TW_TESTS_COLLECTIVES_BITS_H
#define TW_TESTS_COLLECTIVES_BITS_H

#include <cinttypes>
#include <cstdio>

#include "tests/collectives/quantized/quantized.h"
#include "tests/collectives/recorded_bits.h"

namespace tw
{

/** Ranks of each node. */
const std::vector<std::vector<int>> bits_grids = {{1}, {2}, {1, 1, 1, 1}, {2, 2}, {3, 3}, {1, 3}};

struct BitsCase {
    const tw_coll_algo_info_t *algo;
    std::string codec, inner;
};

/** Every algorithm for such memory whose bits are its own, with every codec that it takes. Barriers have
 *  none; NCCL adds up as it likes. What goes packed over NCCL has no length. */
inline std::vector<BitsCase> bits_cases(tw_mem_t mem, bool packs)
{
    std::vector<BitsCase> cases;
    const tw_coll_algo_info_t *algo;
    for (size_t i = 0; (algo = tw_coll_algo_get(mem, i)) != nullptr; i++) {
        if (algo->op == TW_COLL_BARRIER || std::string(algo->name) == "native") {
            continue;
        }
        if (!algo->quantized) {
            cases.push_back({algo, "", ""});
            continue;
        }
        if (packs) {
            cases.push_back({algo, "lossless", ""});
        }
        if (algo->lossless_only) {
            continue;
        }
        cases.push_back({algo, "int8:block=64", ""});
        cases.push_back({algo, "int4:block=32,stochastic", ""});
        if (std::string(algo->name) == "two_hop") {
            cases.push_back({algo, "int4:block=32,stochastic", "int8:block=64"});
        }
    }
    return cases;
}

inline std::string bits_name(const std::vector<int> &grid, const BitsCase &bits)
{
    std::string name = std::string(tw_coll_op_name(bits.algo->op)) + " " + bits.algo->name + " ";
    name += bits.codec.empty() ? "plain" : bits.codec;
    name += bits.inner.empty() ? " on" : " inside " + bits.inner + " on";
    for (int ranks : grid) {
        name += " " + std::to_string(ranks);
    }
    return name;
}

inline void add_bytes(uint64_t *hash, const Bytes &bytes)
{
    for (char byte : bytes) { /* FNV-1a */
        *hash = (*hash ^ (unsigned char)byte) * 0x100000001b3u;
    }
}

/** A hash of the results of all ranks, in every type. */
inline uint64_t bits_of(const BitsCase &bits,
                        const std::function<std::vector<RankBuffers>(const Case &)> &run)
{
    const struct {
        tw_type_t type;
        tw_coll_reduction_t reduction;
        bool in_place;
    } variants[] = {{TW_TYPE_BF16, TW_COLL_SUM, false},
                    {TW_TYPE_FP16, TW_COLL_MEAN, true},
                    {TW_TYPE_FP32, TW_COLL_MEAN, false}};
    uint64_t hash = 0xcbf29ce484222325u;
    for (const auto &variant : variants) {
        Case c;
        c.op = bits.algo->op;
        c.algo = bits.algo->name;
        c.codec = bits.codec;
        c.inner = bits.inner;
        c.type = variant.type;
        c.reduction = variant.reduction;
        c.in_place = variant.in_place || c.op == TW_COLL_BROADCAST; /* the root's dst is read */
        c.sizes = c.op == TW_COLL_ALLTOALL ? std::vector<size_t>{2400, 12}
                                           : std::vector<size_t>{2503, 3, 0, 1, 700};
        for (const RankBuffers &rank : run(c)) {
            for (const Bytes &segment : rank.dst) {
                add_bytes(&hash, segment);
            }
        }
    }
    return hash;
}

/** Expect the recorded bits. Those that differ are printed as they would be recorded. */
inline void expect_recorded(const std::vector<int> &grid, const BitsCase &bits, uint64_t hash)
{
    const std::string name = bits_name(grid, bits);
    char line[200];
    std::snprintf(line, sizeof(line), "    {\"%s\", 0x%016" PRIx64 "u},", name.c_str(), hash);
    auto recorded = recorded_bits.find(name);
    EXPECT_TRUE(recorded != recorded_bits.end() && recorded->second == hash) << "\n" << line;
}

} // namespace tw

#endif
