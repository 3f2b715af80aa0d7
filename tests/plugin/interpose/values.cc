/* Tensors of a job, and what becomes of them. */
#include <cmath>
#include <cstring>

#include "tests/plugin/interpose/job.h"
#include "tests/plugin/interpose/tensors.h"

namespace job
{

std::vector<char> tensor(int rank, size_t count, ncclDataType_t type)
{
    interposed::Floats values(count);
    for (size_t i = 0; i < count; i++) {
        values[i] = interposed::value_of(rank, i);
    }
    return interposed::from_floats(type, values);
}

std::vector<int> all_ranks()
{
    std::vector<int> ranks;
    for (int r = 0; r < self().world; r++) {
        ranks.push_back(r);
    }
    return ranks;
}

std::vector<char> gathered(const std::vector<int> &ranks, size_t count, ncclDataType_t type,
                           const char *codec)
{
    std::vector<char> all;
    for (int r : ranks) {
        std::vector<char> shard = tensor(r, count, type);
        if (*codec != '\0') {
            shard = interposed::through_codec(codec, type, shard);
        }
        all.insert(all.end(), shard.begin(), shard.end());
    }
    return all;
}

Gather all_gather(ncclComm_t comm, size_t count, ncclDataType_t type)
{
    return [=](const void *from, void *to, cudaStream_t stream) {
        return ncclAllGather(from, to, count, type, comm, stream);
    };
}

void expect_gather(const Gather &call, const std::vector<int> &ranks, size_t count, ncclDataType_t type,
                   const char *codec, bool in_place)
{
    standin::Stream stream;
    std::vector<char> own = tensor(self().rank, count, type), kept = own;
    std::vector<char> all(own.size() * ranks.size(), (char)0x7f);
    const void *from = own.data();
    for (size_t place = 0; in_place && place < ranks.size(); place++) {
        if (ranks[place] == self().rank) {
            memcpy(&all[own.size() * place], own.data(), own.size());
            from = &all[own.size() * place];
        }
    }
    OK(call(from, all.data(), handle(stream)));
    stream.synchronize();
    CHECK_THAT(all == gathered(ranks, count, type, codec),
               std::string(codec) + (in_place ? " in place" : " out of place"));
    CHECK_THAT(own == kept, "what was gathered from has changed");
}

static void expect_near(const std::vector<char> &got, const std::vector<float> &want, ncclDataType_t type,
                        double bound, const char *what)
{
    std::vector<float> values = interposed::to_floats(type, got);
    double worst = 0;
    for (size_t i = 0; i < want.size(); i++) {
        double off = std::fabs((double)values[i] - (double)want[i]);
        worst = off > worst || std::isnan(off) ? off : worst;
    }
    CHECK_THAT(worst <= bound, std::string(what) + ": off by " + std::to_string(worst) + ", at most " +
                                   std::to_string(bound));
}

/** Over all ranks, of `count` elements from `first` on, of tensors of `whole` elements. */
static std::vector<float> summed(size_t whole, size_t first, size_t count, ncclDataType_t type, float factor)
{
    std::vector<float> sum(count);
    for (int r : all_ranks()) {
        std::vector<float> all = interposed::to_floats(type, tensor(r, whole, type));
        for (size_t i = 0; i < count; i++) {
            sum[i] += all[first + i] * factor;
        }
    }
    return sum;
}

/** Each input is off by at most so much, and sums are up to LARGEST * world; results are rounded, to 8 bits
 *  at worst. */
static double bound_of(const char *codec, float factor)
{
    double world = self().world, rounding = interposed::LARGEST * world / 128;
    tw_quant_codec_t parsed;
    CHECK(tw_quant_codec_parse(codec, &parsed) == TW_OK);
    return std::fabs((double)factor) *
           (world * tw_quant_error_bound(&parsed, interposed::LARGEST) + 3 * rounding);
}

void expect_scatter(ncclComm_t comm, size_t count, ncclDataType_t type, ncclRedOp_t op, float factor,
                    const char *codec, bool in_place)
{
    standin::Stream stream;
    size_t world = (size_t)self().world, rank = (size_t)self().rank;
    std::vector<char> all = tensor(self().rank, count * world, type);
    std::vector<char> own(all.size() / world, (char)0x7f);
    char *to = in_place ? &all[own.size() * rank] : own.data();
    OK(ncclReduceScatter(all.data(), to, count, type, op, comm, handle(stream)));
    stream.synchronize();
    memcpy(own.data(), to, own.size());
    expect_near(own, summed(count * world, count * rank, count, type, factor), type, bound_of(codec, factor),
                "reduce-scatter");
}

void expect_allreduce(ncclComm_t comm, size_t count, ncclDataType_t type, ncclRedOp_t op, float factor,
                      const char *codec, bool in_place)
{
    standin::Stream stream;
    std::vector<char> from = tensor(self().rank, count, type), to(from.size(), (char)0x7f);
    void *at = in_place ? from.data() : to.data();
    OK(ncclAllReduce(from.data(), at, count, type, op, comm, handle(stream)));
    stream.synchronize();
    memcpy(to.data(), at, to.size());
    /* encoded twice, the second time as a sum */
    expect_near(to, summed(count, 0, count, type, factor), type, 2 * bound_of(codec, factor), "all-reduce");
    std::vector<char> all(to.size() * (size_t)self().world);
    OK(ncclAllGather(to.data(), all.data(), to.size(), ncclUint8, comm, handle(stream)));
    stream.synchronize();
    for (int r : all_ranks()) {
        CHECK_THAT(memcmp(&all[(size_t)r * to.size()], to.data(), to.size()) == 0,
                   "rank " + std::to_string(r) + " has other bits");
    }
}

} // namespace job
