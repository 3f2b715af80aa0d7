/** Quantized operations on a world of threads, beside a reference in fp64. */
#ifndef TW_TESTS_COLLECTIVES_QUANTIZED_QUANTIZED_H
#define TW_TESTS_COLLECTIVES_QUANTIZED_QUANTIZED_H

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/collectives/world.h"

namespace tw
{

using Bytes = std::vector<char>;

/** One operation; sizes are those of the whole tensors. */
struct Case {
    tw_coll_op_t op = TW_COLL_ALLGATHER;
    std::string algo;
    tw_type_t type = TW_TYPE_BF16;
    std::string codec = "int8:block=32", inner; /**< inner "": plain */
    tw_coll_reduction_t reduction = TW_COLL_SUM;
    std::vector<size_t> sizes;               /**< one per segment */
    std::vector<std::vector<size_t>> counts; /**< per segment; none: the even split */
    std::vector<std::string> own; /**< per segment: "" the operation's codec, "plain", or one of its own */
    float magnitude = 1;          /**< of the values */
    float largest = INFINITY;     /**< none is larger */
    float factor = 1;
    bool in_place = false;
    uint64_t seed = 7;
    uint32_t step = 3;
};

inline tw_quant_codec_t parse_codec(const std::string &text)
{
    tw_quant_codec_t codec;
    EXPECT_EQ(tw_quant_codec_parse(text.c_str(), &codec), TW_OK) << text;
    return codec;
}

/** The texts of all codecs with blocks, with each option that they have, and some with several; sums: those
 *  that can be summed. */
inline std::vector<std::string> codec_texts(bool sums)
{
    std::vector<std::string> texts = {"int4:block=4096", "int8:block=96,hadamard,stochastic"};
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get(tw_quant_kind_t(kind));
        if (row->form != TW_QUANT_BLOCKS || (sums && !row->sums)) {
            continue;
        }
        const std::string name = row->name;
        texts.insert(texts.end(), {name, name + ":scale=fp32"});
        if (row->has & TW_QUANT_HAS_HADAMARD) {
            texts.push_back(name + ":hadamard");
        }
        if (row->has & TW_QUANT_HAS_STOCHASTIC) {
            texts.push_back(name + ":stochastic");
        }
    }
    return texts;
}

/** A number in about [-1, 1], different for every rank, segment and element; every 97th is larger. */
inline float value_of(int rank, size_t segment, size_t i)
{
    uint64_t h = ((uint64_t)rank * 1000003u + segment) * 1000003u + i;
    h = (h ^ h >> 31) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    float unit = (float)(int32_t)(h >> 32) / 2147483648.0f;
    return i % 97 == 5 ? 3 * unit : unit;
}

inline Bytes plain_tensor(const Case &c, int rank, size_t segment, size_t first, size_t n)
{
    std::vector<float> values(n);
    for (size_t i = 0; i < n; i++) {
        float value = c.magnitude * value_of(rank, segment, first + i);
        values[i] = std::fmax(-c.largest, std::fmin(c.largest, value));
    }
    Bytes bytes(n * tw_type_bytes(c.type));
    tw_convert_from_fp32(c.type, values.data(), 1, bytes.data(), n);
    return bytes;
}

inline std::vector<float> to_floats(tw_type_t type, const Bytes &bytes)
{
    std::vector<float> values(bytes.size() / tw_type_bytes(type));
    tw_convert_to_fp32(type, bytes.data(), values.data(), values.size());
    return values;
}

inline size_t count_of(const Case &c, int world, size_t segment, int rank)
{
    return c.counts.empty() ? tw_coll_shard_elems(c.sizes[segment], world, rank)
                            : c.counts[segment][(size_t)rank];
}

inline size_t first_of(const Case &c, int world, size_t segment, int rank)
{
    size_t first = 0;
    for (int r = 0; r < rank; r++) {
        first += count_of(c, world, segment, r);
    }
    return first;
}

/** Buffers of one rank. In place, src is empty. */
struct RankBuffers {
    std::vector<Bytes> src, dst;
};

inline void prepare(const Case &c, int world, int rank, RankBuffers *buffers)
{
    size_t elem = tw_type_bytes(c.type);
    for (size_t s = 0; s < c.sizes.size(); s++) {
        size_t first = first_of(c, world, s, rank), count = count_of(c, world, s, rank), n = c.sizes[s];
        Bytes whole(n * elem, (char)0x5a), plain;
        if (c.op == TW_COLL_ALLGATHER) {
            plain = plain_tensor(c, rank, s, first, count);
            if (c.in_place && count > 0) {
                memcpy(whole.data() + first * elem, plain.data(), plain.size());
            }
        } else {
            plain = plain_tensor(c, rank, s, 0, n);
            if (c.in_place) {
                whole = plain;
            } else if (c.op == TW_COLL_REDUCE_SCATTER) {
                whole.resize(count * elem);
            }
        }
        buffers->dst.push_back(whole);
        buffers->src.push_back(c.in_place ? Bytes() : plain);
    }
}

/** Runs an operation of a rank. */
using Runner = std::function<tw_status_t(int rank, const tw_coll_args_t *args)>;

/** What rank `rank` asks for, in terms of `buffers`. Codecs: "" is plain. */
struct RankCase {
    tw_quant_codec_t codec, inner;
    std::vector<tw_quant_codec_t> own;
    std::vector<tw_coll_segment_t> segments;
    tw_coll_args_t args = {};

    RankCase(const Case &c, RankBuffers *buffers, int force_codec)
        : codec(parse_codec(c.codec.empty() ? "int8" : c.codec)),
          inner(parse_codec(c.inner.empty() ? "int8" : c.inner)), own(c.own.size()), segments(c.sizes.size())
    {
        bool swap = c.in_place && c.op == TW_COLL_REDUCE_SCATTER;
        for (size_t s = 0; s < segments.size(); s++) {
            segments[s].src = c.in_place && !swap ? nullptr
                              : swap              ? buffers->dst[s].data()
                                                  : buffers->src[s].data();
            segments[s].dst = swap ? nullptr : buffers->dst[s].data();
            segments[s].n_elems = c.sizes[s];
            segments[s].counts = c.counts.empty() ? nullptr : c.counts[s].data();
            segments[s].tensor = (uint32_t)s;
        }
        for (size_t s = 0; s < c.own.size(); s++) {
            segments[s].unquantized = c.own[s] == "plain";
            if (!c.own[s].empty() && !segments[s].unquantized) {
                own[s] = parse_codec(c.own[s]);
                segments[s].codec = &own[s];
            }
        }
        args.op = c.op;
        args.factor = c.factor;
        args.type = c.type;
        args.segments = segments.data();
        args.n_segments = segments.size();
        args.reduction = c.reduction;
        args.codec = c.codec.empty() ? nullptr : &codec;
        args.inner_codec = c.inner.empty() ? nullptr : &inner;
        args.seed = c.seed;
        args.step = c.step;
        args.algo = c.algo.empty() ? nullptr : c.algo.c_str();
        args.force_codec = force_codec;
    }
    RankCase(const RankCase &) = delete;
    RankCase &operator=(const RankCase &) = delete;
};

/** Keep only the own shard of the buffers, after a reduce-scatter in place. */
inline void keep_shard(const Case &c, int world, int rank, RankBuffers *buffers)
{
    size_t elem = tw_type_bytes(c.type);
    for (size_t s = 0; s < c.sizes.size() && c.op == TW_COLL_REDUCE_SCATTER && c.in_place; s++) {
        size_t first = first_of(c, world, s, rank), count = count_of(c, world, s, rank);
        buffers->dst[s] = Bytes(buffers->dst[s].begin() + (long)(first * elem),
                                buffers->dst[s].begin() + (long)((first + count) * elem));
    }
}

/** Runs the operation; after it dst holds the result of every rank: the whole tensor, or the own shard. */
inline std::vector<RankBuffers> run_case_by(World &world, const Case &c, int force_codec,
                                            const Runner &runner)
{
    std::vector<RankBuffers> all((size_t)world.size());
    world.run([&](int rank) {
        RankBuffers &mine = all[(size_t)rank];
        prepare(c, world.size(), rank, &mine);
        RankCase asked(c, &mine, force_codec);
        EXPECT_EQ(runner(rank, &asked.args), TW_OK);
        keep_shard(c, world.size(), rank, &mine);
    });
    return all;
}

/** Run a case as one rank. */
inline tw_status_t run_rank(tw_coll_t *coll, const Case &c, RankBuffers *mine, int force_codec = 1)
{
    prepare(c, tw_coll_size(coll), tw_coll_rank(coll), mine);
    RankCase asked(c, mine, force_codec);
    tw_status_t status = tw_coll_run(coll, &asked.args);
    keep_shard(c, tw_coll_size(coll), tw_coll_rank(coll), mine);
    return status;
}

inline std::vector<RankBuffers> run_case(World &world, const Case &c, int force_codec = 1)
{
    return run_case_by(world, c, force_codec,
                       [&](int rank, const tw_coll_args_t *args) { return world.run(rank, args); });
}

/** decode(encode(plain)), as the reference codec does it. */
inline Bytes round_trip(const Case &c, uint64_t seed, size_t segment, size_t first, const Bytes &plain)
{
    tw_quant_params_t params = {parse_codec(c.codec), TW_MEM_HOST, "ref"};
    tw_quant_t *quant = nullptr;
    EXPECT_EQ(tw_quant_create(&params, &quant), TW_OK);
    size_t n = plain.size() / tw_type_bytes(c.type);
    Bytes encoded(tw_quant_encoded_bytes(&params.codec, n) + 1), out(plain.size());
    tw_quant_args_t args = {c.type, seed, c.step, 1, nullptr, nullptr, 0, 0};
    tw_quant_segment_t there = {plain.data(), nullptr, encoded.data(), n, (uint32_t)segment, first};
    tw_quant_segment_t back = {encoded.data(), nullptr, out.data(), n, (uint32_t)segment, first};
    if (n > 0) {
        EXPECT_EQ(tw_quant_encode(quant, &args, &there, 1), TW_OK);
        EXPECT_EQ(tw_quant_decode(quant, &args, &back, 1), TW_OK);
    }
    tw_quant_destroy(quant);
    return out;
}

/** Largest error of one encoding of values up to amax. */
inline double codec_bound(const tw_quant_codec_t &codec, double amax)
{
    double bound = tw_quant_error_bound(&codec, codec.hadamard ? std::sqrt(32.0) * amax : amax);
    if (codec.hadamard) { /* the 2-norm of a group's error, all of it in one element */
        bound *= std::sqrt(32.0);
    }
    return codec.round == TW_QUANT_ROUND_STOCHASTIC ? 2 * bound : bound;
}

/** Largest relative error of rounding into a type. */
inline double type_epsilon(tw_type_t type)
{
    return type == TW_TYPE_BF16   ? std::ldexp(1, -8)
           : type == TW_TYPE_FP16 ? std::ldexp(1, -11)
                                  : std::ldexp(1, -24);
}

/** Error bound of a reduction; every value that is encoded is below 3 x the ranks summed up in it. */
inline double reduction_bound(const Case &c, int world, int n_nodes)
{
    tw_quant_codec_t codec = parse_codec(c.codec), inner = parse_codec(c.inner.empty() ? "int8" : c.inner);
    double amax = 3.02, w = world, bound = 0;
    if (c.algo == "one_hop") {
        bound = w * codec_bound(codec, amax);
    } else {
        double inner_bound = c.inner.empty() ? 0 : codec_bound(inner, amax);
        bound = w * inner_bound + n_nodes * codec_bound(codec, w * (amax + inner_bound));
    }
    double factor = c.reduction == TW_COLL_MEAN ? 1 / w : 1, value = factor * (w * amax + bound);
    bound = factor * bound + value * w * std::ldexp(1, -23);
    if (c.op == TW_COLL_ALLREDUCE) { /* the result is encoded once more */
        bound += codec_bound(codec, value + bound);
    }
    return bound + 2 * (value + bound) * type_epsilon(c.type);
}

inline std::string name_of(const Case &c)
{
    return std::string(tw_coll_op_name(c.op)) + " " + c.algo + " " + c.codec + " inner " + c.inner + " " +
           tw_type_name(c.type) + (c.in_place ? " in place" : "");
}

/** What every rank ends with after an all-gather, bit for bit. */
inline Bytes gathered(const Case &c, int world, size_t segment)
{
    Bytes want;
    for (int r = 0; r < world; r++) {
        size_t first = first_of(c, world, segment, r);
        Bytes plain = plain_tensor(c, r, segment, first, count_of(c, world, segment, r));
        Bytes part = round_trip(c, c.seed, segment, first, plain);
        want.insert(want.end(), part.begin(), part.end());
    }
    return want;
}

/** Exact result of a reduction. */
inline std::vector<double> reduced(const Case &c, int world, size_t segment)
{
    std::vector<double> sum(c.sizes[segment]);
    for (int r = 0; r < world; r++) {
        std::vector<float> mine = to_floats(c.type, plain_tensor(c, r, segment, 0, c.sizes[segment]));
        for (size_t i = 0; i < sum.size(); i++) {
            sum[i] += mine[i];
        }
    }
    for (double &value : sum) {
        value /= c.reduction == TW_COLL_MEAN ? world : 1;
    }
    return sum;
}

/** "" or what is wrong with one rank's result. */
inline std::string check_rank(const Case &c, int world, int n_nodes, int rank, const RankBuffers &mine)
{
    double bound = c.op == TW_COLL_ALLGATHER ? 0 : reduction_bound(c, world, n_nodes);
    for (size_t s = 0; s < c.sizes.size(); s++) {
        std::string where = name_of(c) + ": rank " + std::to_string(rank) + " of " + std::to_string(world) +
                            ", segment " + std::to_string(s) + " of " + std::to_string(c.sizes[s]);
        if (c.op == TW_COLL_ALLGATHER) {
            if (mine.dst[s] != gathered(c, world, s)) {
                return where + ": not what the codec gives";
            }
            continue;
        }
        bool whole = c.op == TW_COLL_ALLREDUCE;
        size_t first = whole ? 0 : first_of(c, world, s, rank);
        size_t n = whole ? c.sizes[s] : count_of(c, world, s, rank);
        std::vector<double> want = reduced(c, world, s);
        std::vector<float> got = to_floats(c.type, mine.dst[s]);
        if (got.size() != n) {
            return where + ": " + std::to_string(got.size()) + " elements";
        }
        for (size_t i = 0; i < n; i++) {
            if (!(std::fabs(got[i] - want[first + i]) <= bound)) {
                return where + ": element " + std::to_string(first + i) + " is " + std::to_string(got[i]) +
                       ", not " + std::to_string(want[first + i]) + " +- " + std::to_string(bound);
            }
        }
    }
    return "";
}

/** Every rank of a world of threads is right, and whole tensors are alike everywhere. */
inline void check_case(World &world, const Case &c)
{
    std::vector<RankBuffers> got = run_case(world, c);
    int n_nodes = tw_coll_n_nodes(world.coll(0));
    for (int r = 0; r < world.size(); r++) {
        if (c.op == TW_COLL_REDUCE_SCATTER || r == 0) {
            ASSERT_EQ(check_rank(c, world.size(), n_nodes, r, got[(size_t)r]), "");
        } else {
            ASSERT_TRUE(got[(size_t)r].dst == got[0].dst) << name_of(c) << ": ranks 0 and " << r << " differ";
        }
    }
}

} // namespace tw

#endif
