/* What a process takes while it runs an operation, and what it gives back: as the kernel counts it. */
#include <cstdio>
#include <cstring>

#include "tests/collectives/processes.h"
#include "tests/common/fixture.h"

namespace
{

constexpr int LIMIT_SEC = 100;
constexpr size_t SCRATCH_BYTES = 8 << 20, TENSOR_BYTES = 64 << 20, N = TENSOR_BYTES / 2;
/* What is not scratch memory: tasks (about 200 bytes each; a chunk of each shard makes up to 2 * W of them),
 * and what UCX buffers of messages on their way, for each peer and direction about two windows of its own. */
constexpr size_t BESIDE_BYTES = 2 << 20;

struct Kind {
    tw_coll_op_t op;
    const char *algo, *codec;
};

const Kind kinds[] = {
    {TW_COLL_ALLGATHER, "ring", ""},
    {TW_COLL_ALLGATHER, "hierarchical", "int4"},
    {TW_COLL_REDUCE_SCATTER, "two_hop", ""},
    {TW_COLL_REDUCE_SCATTER, "one_hop", "int8"},
    {TW_COLL_REDUCE_SCATTER, "two_hop", "int4:hadamard"},
    {TW_COLL_ALLREDUCE, "one_hop", "int4"},
};

/* "VmRSS" or "VmHWM" of this process. */
size_t resident_bytes(const char *which)
{
    char line[128];
    unsigned long kib = 0;
    FILE *file = std::fopen("/proc/self/status", "r");
    while (file != nullptr && std::fgets(line, sizeof(line), file) != nullptr) {
        if (std::strncmp(line, which, std::strlen(which)) == 0) {
            std::sscanf(line + std::strlen(which), ": %lu", &kib);
        }
    }
    if (file != nullptr) {
        std::fclose(file);
    }
    return kib << 10;
}

/* The peak begins anew. */
bool forget_peak()
{
    FILE *file = std::fopen("/proc/self/clear_refs", "w");
    return file != nullptr && std::fputs("5", file) >= 0 && std::fclose(file) == 0;
}

tw_status_t run(tw_coll_t *coll, const Kind &kind, uint16_t *src, uint16_t *dst, size_t n)
{
    tw_coll_segment_t segment = {};
    segment.src = src;
    segment.dst = dst;
    segment.n_elems = n;
    tw_quant_codec_t codec;
    tw_coll_args_t args = {};
    args.op = kind.op;
    args.type = TW_TYPE_BF16;
    args.segments = &segment;
    args.n_segments = 1;
    args.algo = kind.algo;
    args.force_codec = 1;
    if (*kind.codec != '\0') {
        args.codec = &codec;
        TW_TRY(tw_quant_codec_parse(kind.codec, &codec));
    }
    return tw_coll_run(coll, &args);
}

std::string mib(size_t bytes)
{
    return std::to_string(bytes >> 20) + "M";
}

/* Small operations first, so that what UCX makes once for each peer is there. */
std::string measure(tw_coll_t *coll)
{
    std::vector<uint16_t> src(N, 0x3f80), dst(N, 0x3f80);
    std::string wrong;
    for (const Kind &kind : kinds) {
        if (run(coll, kind, src.data(), dst.data(), 1 << 20) != TW_OK) {
            return std::string(kind.algo) + ": failed";
        }
    }
    tw_coll_trim(coll);
    for (const Kind &kind : kinds) {
        const std::string name = std::string(tw_coll_op_name(kind.op)) + " " + kind.algo + " " + kind.codec;
        const size_t before = resident_bytes("VmRSS");
        if (!forget_peak() || before == 0) {
            return "the kernel counts nothing";
        }
        tw_status_t status = run(coll, kind, src.data(), dst.data(), N);
        const size_t peak = resident_bytes("VmHWM") - before, held = tw_coll_workspace_bytes(coll);
        tw_coll_trim(coll);
        const size_t after = resident_bytes("VmRSS");
        if (status != TW_OK) {
            wrong += name + ": " + tw_status_string(status) + "; ";
        }
        if (peak > SCRATCH_BYTES + BESIDE_BYTES || held > SCRATCH_BYTES) {
            wrong += name + ": took " + mib(peak) + ", holds " + mib(held) + "; ";
        }
        if (tw_coll_workspace_bytes(coll) != 0 || after > before + BESIDE_BYTES / 2) {
            wrong += name + ": of " + mib(held) + " gave back all but " + mib(after - before) + "; ";
        }
        if (held == 0 && (kind.op != TW_COLL_ALLGATHER || *kind.codec != '\0')) {
            wrong += name + ": needed nothing at all; "; /* plain shards come to their place at once */
        }
    }
    return wrong;
}

class Memory : public tw::Fixture
{
  protected:
    void check(const std::vector<int> &node_of)
    {
        set_env("TW_COLL_SCRATCH", std::to_string(SCRATCH_BYTES));
        set_env("TW_COLL_MODEL", "inter:beta=1gbit");
        EXPECT_EQ(tw::run_processes(node_of, measure, LIMIT_SEC), "");
    }
};

TEST_F(Memory, FourNodes)
{
    check({0, 1, 2, 3});
}

TEST_F(Memory, TwoNodesOfTwo)
{
    check({0, 0, 1, 1});
}

} // namespace
