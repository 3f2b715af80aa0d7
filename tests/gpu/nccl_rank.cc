#include "tests/gpu/nccl_rank.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include <sys/resource.h>
#include <unistd.h>

#include "quant/quant.h"
#include "tests/plugin/interpose/tensors.h"

namespace tw::gpu
{

namespace
{

constexpr double meet_sec = 60;
constexpr double death_sec = 60; /* an error must have arrived by then: a dead process closes its sockets */

using interposed::Bytes;
using interposed::elem_bytes;
using interposed::Floats;
using interposed::from_floats;
using interposed::to_floats;

/* ---- values ---- */

/* A rank's tensor. What is not encoded is small integers, whose sums and means over four ranks every type
 * holds, in whatever order. */
float value_of(const PluginCase &c, int rank, size_t i)
{
    if (c.codec.empty()) {
        return (float)((5 * (size_t)rank + 3 * i) % 13) - 6;
    }
    return interposed::value_of(rank, i);
}

/* As they come out of the codec. */
Floats through_codec(const PluginCase &c, const Floats &plain)
{
    return to_floats(c.type, interposed::through_codec(c.codec, c.type, from_floats(c.type, plain)));
}

/* ---- operations ---- */

struct Group {
    ncclComm_t comm = nullptr;
    std::vector<int> ranks; /* of the job */
    int place = 0;          /* this rank's */
    size_t size() const
    {
        return ranks.size();
    }
};

/* What a call reads and writes, in elements, and what must be there afterwards. */
struct Op {
    size_t n_from, n_to, from_at, to_at; /* the last two: of an operation in place, in the larger of both */
    std::function<Floats()> want;        /* of this rank; empty: nothing is written here */
    std::function<ncclResult_t(const void *from, void *to)> call;
};

class Ops
{
  public:
    Ops(const PluginCase &the_case, const Group &the_group, cudaStream_t the_stream)
        : c(the_case), group(the_group), stream(the_stream)
    {
    }
    Op op() const
    {
        const size_t n = c.count, all = n * group.size(), own = n * (size_t)group.place;
        switch (c.kind) {
        case PluginCase::gather:
            return {n,
                    all,
                    own,
                    0,
                    [this] { return gathered(); },
                    [this](const void *from, void *to) {
                        return ncclAllGather(from, to, c.count, c.type, group.comm, stream);
                    }};
        case PluginCase::scatter:
            return {all,
                    n,
                    0,
                    own,
                    [this] { return reduced(c.count * (size_t)group.place); },
                    [this](const void *from, void *to) {
                        return ncclReduceScatter(from, to, c.count, c.type, c.op, group.comm, stream);
                    }};
        case PluginCase::broadcast:
            return {n,
                    n,
                    0,
                    0,
                    [this] { return tensor(group.ranks.back(), 0); },
                    [this](const void *from, void *to) {
                        return ncclBroadcast(from, to, c.count, c.type, (int)group.size() - 1, group.comm,
                                             stream);
                    }};
        case PluginCase::reduce:
            return {n,
                    n,
                    0,
                    0,
                    [this] { return group.place == 0 ? reduced(0) : Floats(); },
                    [this](const void *from, void *to) {
                        return ncclReduce(from, to, c.count, c.type, c.op, 0, group.comm, stream);
                    }};
        case PluginCase::exchange:
            return {all,
                    all,
                    0,
                    0,
                    [this] { return exchanged(); },
                    [this](const void *from, void *to) { return exchange(from, to); }};
        case PluginCase::ring:
            return {n,
                    n,
                    0,
                    0,
                    [this] { return tensor(group.ranks[before()], 0); },
                    [this](const void *from, void *to) { return pass_on(from, to); }};
        default:
            return {n,
                    n,
                    0,
                    0,
                    [this] { return reduced(0); },
                    [this](const void *from, void *to) {
                        return ncclAllReduce(from, to, c.count, c.type, c.op, group.comm, stream);
                    }};
        }
    }
    Floats tensor(int rank, size_t first) const
    {
        Floats values(c.count);
        for (size_t i = 0; i < c.count; i++) {
            values[i] = value_of(c, rank, first + i);
        }
        return values;
    }

  private:
    size_t before() const
    {
        return ((size_t)group.place + group.size() - 1) % group.size();
    }
    Floats gathered() const
    {
        Floats all;
        for (int rank : group.ranks) {
            const Floats shard = c.codec.empty() ? tensor(rank, 0) : through_codec(c, tensor(rank, 0));
            all.insert(all.end(), shard.begin(), shard.end());
        }
        return all;
    }
    Floats reduced(size_t first) const
    {
        Floats sum = tensor(group.ranks[0], first);
        for (size_t r = 1; r < group.size(); r++) {
            const Floats more = tensor(group.ranks[r], first);
            for (size_t i = 0; i < c.count; i++) {
                sum[i] = c.op == ncclMax ? std::max(sum[i], more[i]) : sum[i] + more[i];
            }
        }
        for (float &value : sum) {
            value /= c.op == ncclAvg ? (float)group.size() : 1;
        }
        return sum;
    }
    Floats exchanged() const
    {
        Floats all;
        for (int rank : group.ranks) {
            const Floats piece = tensor(rank, c.count * (size_t)group.place);
            all.insert(all.end(), piece.begin(), piece.end());
        }
        return all;
    }
    ncclResult_t exchange(const void *from, void *to) const
    {
        const size_t bytes = c.count * elem_bytes(c.type);
        ncclResult_t result = ncclGroupStart();
        for (int r = 0; r < (int)group.size() && result == ncclSuccess; r++) {
            result = ncclSend((const char *)from + (size_t)r * bytes, c.count, c.type, r, group.comm, stream);
            if (result == ncclSuccess) {
                result = ncclRecv((char *)to + (size_t)r * bytes, c.count, c.type, r, group.comm, stream);
            }
        }
        const ncclResult_t ended = ncclGroupEnd();
        return result == ncclSuccess ? ended : result;
    }
    ncclResult_t pass_on(const void *from, void *to) const
    {
        const int next = (group.place + 1) % (int)group.size();
        ncclResult_t result = ncclGroupStart();
        if (result == ncclSuccess) {
            result = ncclSend(from, c.count, c.type, next, group.comm, stream);
        }
        if (result == ncclSuccess) {
            result = ncclRecv(to, c.count, c.type, (int)before(), group.comm, stream);
        }
        const ncclResult_t ended = ncclGroupEnd();
        return result == ncclSuccess ? ended : result;
    }

    const PluginCase &c;
    const Group &group;
    cudaStream_t stream;
};

/* Each input is off by so much at most, a mean by as much; an all-reduce encodes the sum once more; results
 * are rounded, to 8 bits at worst. */
double bound_of(const PluginCase &c, size_t world)
{
    tw_quant_codec_t codec;
    const double n = c.op == ncclAvg ? 1 : (double)world;
    if (tw_quant_codec_parse(c.codec.c_str(), &codec) != TW_OK) {
        return 0;
    }
    return (c.kind == PluginCase::all_reduce ? 2 : 1) * n *
           (tw_quant_error_bound(&codec, interposed::LARGEST) + interposed::LARGEST / 64);
}

/* ---- the rank ---- */

class NcclRank
{
  public:
    NcclRank(const PluginJob &the_job, NcclDevice &the_device)
        : job(the_job), device(the_device), rank(atoi(getenv("RANK"))), folder(getenv("NCCL_RANK_FOLDER"))
    {
        for (int r = 0; r < job.world; r++) {
            world.ranks.push_back(r);
        }
        world.place = rank;
    }
    NcclRank(const NcclRank &) = delete;
    NcclRank &operator=(const NcclRank &) = delete;
    ~NcclRank()
    {
        if (world.comm != nullptr && !is_broken) {
            (void)ncclCommDestroy(world.comm);
        }
    }

    /* "", or why not. */
    std::string join()
    {
        ncclUniqueId id;
        const std::string why = meet(&id);
        return why.empty() ? check("ncclCommInitRank", ncclCommInitRank(&world.comm, job.world, id, rank))
                           : why;
    }
    bool run_all()
    {
        return run_cases(
            job.cases.size(), [this](size_t i) { return run(job.cases[i]); }, is_broken);
    }

  private:
    std::string check(const char *what, ncclResult_t result)
    {
        if (result == ncclSuccess) {
            return "";
        }
        is_broken = true;
        return std::string(what) + ": " + ncclGetErrorString(result) + ": " + ncclGetLastError(world.comm);
    }
    std::string lost(const char *what)
    {
        is_broken = true;
        return std::string(what) + " failed";
    }

    /* Rank 0 leaves the id in a file, each time another one. */
    std::string meet(ncclUniqueId *id)
    {
        const std::string path = folder + "/id-" + std::to_string(n_meetings++);
        if (rank == 0) {
            const std::string why = check("ncclGetUniqueId", ncclGetUniqueId(id));
            std::ofstream(path + ".new", std::ios::binary).write(id->internal, sizeof(id->internal));
            return rename((path + ".new").c_str(), path.c_str()) == 0 ? why : lost("leaving the id");
        }
        const double until = tw_time_sec() + meet_sec;
        while (access(path.c_str(), F_OK) != 0) {
            if (tw_time_sec() > until) {
                return lost("waiting for rank 0's id");
            }
            usleep(10000);
        }
        std::ifstream(path, std::ios::binary).read(id->internal, sizeof(id->internal));
        return "";
    }

    std::string run(const PluginCase &c)
    {
        switch (c.kind) {
        case PluginCase::child:
            return run_child(c);
        case PluginCase::again:
            return run_again(c);
        case PluginCase::logged:
            return run_logged();
        case PluginCase::death:
            return run_death(c);
        default:
            return run_op(c, world);
        }
    }

    /* The source, and room for the result, which is in the same memory if the operation is in place. */
    struct Memory {
        void *from = nullptr, *to = nullptr;
        void *owned[2] = {};
    };
    Memory upload(const PluginCase &c, const Group &group, const Op &op)
    {
        Memory memory;
        const size_t elem = elem_bytes(c.type);
        Floats values;
        for (size_t i = 0; i < op.n_from; i++) {
            values.push_back(value_of(c, group.ranks[(size_t)group.place], i));
        }
        Bytes from = from_floats(c.type, values), room(std::max(op.n_from, op.n_to) * elem, (char)0x7f);
        if (c.in_place) {
            memcpy(&room[op.from_at * elem], from.data(), from.size());
            memory.owned[0] = device.upload(room.data(), room.size());
            memory.from = (char *)memory.owned[0] + op.from_at * elem;
            memory.to = (char *)memory.owned[0] + op.to_at * elem;
            return memory;
        }
        memory.from = memory.owned[0] = device.upload(from.data(), from.size());
        memory.to = memory.owned[1] = device.upload(room.data(), op.n_to * elem);
        return memory;
    }
    void release(const Memory &memory)
    {
        for (void *owned : memory.owned) {
            if (owned != nullptr) {
                device.release(owned);
            }
        }
    }

    std::string run_op(const PluginCase &c, const Group &group)
    {
        const Ops ops(c, group, device.stream());
        const Op op = ops.op();
        const Memory memory = upload(c, group, op);
        Bytes got(op.n_to * elem_bytes(c.type));
        if (memory.from == nullptr || memory.to == nullptr) {
            return lost("memory");
        }
        std::string wrong = check("the call", op.call(memory.from, memory.to));
        if (wrong.empty() && !(device.synchronize() && device.fetch(got.data(), memory.to, got.size()))) {
            wrong = lost("the operation");
        }
        if (wrong.empty()) {
            wrong = compare(c, group, to_floats(c.type, got), op.want());
        }
        if (!is_broken && c.kind == PluginCase::all_reduce && !c.codec.empty()) {
            const std::string unlike = compare_neighbors(c, group, memory.to, got);
            wrong += unlike;
        }
        release(memory);
        return wrong;
    }
    static std::string differs(size_t i, size_t n, double got, double want, double bound)
    {
        char text[160];
        snprintf(text, sizeof(text), "element %zu of %zu: %.9g, not %.9g +- %.3g", i, n, got, want, bound);
        return text;
    }
    /* A gather's bits are the codec's. A sum that is encoded is off, but not by much; in fp32 it shows. */
    std::string compare(const PluginCase &c, const Group &group, const Floats &got, const Floats &want) const
    {
        const bool bounded = !c.codec.empty() && c.kind != PluginCase::gather;
        const double bound = bounded ? bound_of(c, group.size()) : 0;
        double most = 0;
        for (size_t i = 0; i < want.size(); i++) {
            const double off = std::fabs((double)got[i] - (double)want[i]);
            if (!(off <= bound)) {
                return differs(i, want.size(), got[i], want[i], bound);
            }
            most = std::max(most, off);
        }
        return bounded && c.type == ncclFloat32 && most < 1e-3 ? "the sum is exact: nothing was encoded" : "";
    }
    /* The bits of the rank before are this one's. */
    std::string compare_neighbors(const PluginCase &c, const Group &group, void *own, const Bytes &bits)
    {
        PluginCase ring = c;
        ring.kind = PluginCase::ring;
        const Ops ops(ring, group, device.stream());
        Bytes other(bits.size());
        void *memory = device.upload(other.data(), other.size());
        if (memory == nullptr) {
            return lost("memory");
        }
        std::string wrong = check("passing the result on", ops.op().call(own, memory));
        if (wrong.empty() && !(device.synchronize() && device.fetch(other.data(), memory, other.size()))) {
            wrong = lost("passing the result on");
        }
        device.release(memory);
        return wrong.empty() && other != bits ? "the rank before has other bits" : wrong;
    }

    std::string run_child(const PluginCase &c)
    {
        Group group;
        for (int r = rank % 2; r < job.world; r += 2) {
            group.place += r < rank;
            group.ranks.push_back(r);
        }
        std::string wrong =
            check("ncclCommSplit", ncclCommSplit(world.comm, rank % 2, rank, &group.comm, nullptr));
        if (wrong.empty()) {
            wrong = run_op(c, group);
        }
        return wrong.empty() ? check("ncclCommDestroy", ncclCommDestroy(group.comm)) : wrong;
    }

    std::string run_again(const PluginCase &c)
    {
        std::string wrong = check("ncclCommDestroy", ncclCommDestroy(world.comm));
        world.comm = nullptr;
        if (wrong.empty()) {
            wrong = join();
        }
        return wrong.empty() ? run_op(c, world) : wrong;
    }

    std::string run_logged() const
    {
        const char *path = getenv("NCCL_DEBUG_FILE");
        std::ostringstream text;
        text << std::ifstream(path).rdbuf();
        std::string wrong;
        for (const std::string &line : job.logged) {
            if (text.str().find(line) == std::string::npos) {
                wrong += "no '" + line + "'; ";
            }
        }
        return wrong;
    }

    /* A whole all-reduce; then one without the victim. What waits on the GPU ends when the communicator is
     * aborted. */
    std::string run_death(const PluginCase &c)
    {
        std::string wrong = run_op(c, world);
        if (!wrong.empty()) {
            return wrong;
        }
        if (rank == job.victim) {
            usleep(500000); /* the others have the result, too */
            raise(SIGKILL);
        }
        const Ops ops(c, world, device.stream());
        const Op op = ops.op();
        const Memory memory = upload(c, world, op);
        const double start_sec = tw_time_sec();
        ncclResult_t result = op.call(memory.from, memory.to), async = result;
        while (result == ncclSuccess && (async == ncclSuccess || async == ncclInProgress) &&
               tw_time_sec() < start_sec + death_sec) {
            usleep(10000);
            result = ncclCommGetAsyncError(world.comm, &async);
        }
        printf("rank %d: %s after %.1f s\n", rank, ncclGetErrorString(async), tw_time_sec() - start_sec);
        wrong = async == ncclSuccess || async == ncclInProgress ? "no error" : "";
        result = ncclCommAbort(world.comm);
        is_broken = true;
        return wrong.empty() && result != ncclSuccess ? "ncclCommAbort failed" : wrong;
    }

    const PluginJob &job;
    NcclDevice &device;
    int rank, n_meetings = 0;
    std::string folder;
    Group world;
    bool is_broken = false;
};

} // namespace

int run_nccl_rank(const PluginJob &job, NcclDevice &device)
{
    const rlimit no_core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
    NcclRank rank(job, device);
    const std::string why = rank.join();
    if (!why.empty()) {
        printf("cannot join the job: %s\n", why.c_str());
        return 1;
    }
    return rank.run_all() ? 0 : 1;
}

} // namespace tw::gpu
