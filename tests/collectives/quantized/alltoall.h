/** Quantized all-to-all: every pair's share beside what the codec alone makes of it. */
#ifndef TW_TESTS_COLLECTIVES_QUANTIZED_ALLTOALL_H
#define TW_TESTS_COLLECTIVES_QUANTIZED_ALLTOALL_H

#include <numeric>
#include <random>

#include "collectives/quantized/operation.h"
#include "tests/collectives/quantized/quantized.h"

namespace tw::alltoall
{

using Counts = std::vector<std::vector<size_t>>; /* [from][to] */

struct Segment {
    Counts counts;
    std::string codec; /* "": the operation's; "plain"; or its own */
};

struct Ask {
    tw_type_t type;
    std::string codec; /* "": plain */
    bool in_place;
    std::vector<Segment> segments;
};

constexpr uint64_t SEED = 7;
constexpr uint32_t STEP = 3;

inline size_t sum(const std::vector<size_t> &counts, size_t n)
{
    return std::accumulate(counts.begin(), counts.begin() + (long)n, (size_t)0);
}

inline std::vector<size_t> column(const Counts &counts, size_t to)
{
    std::vector<size_t> all;
    for (const std::vector<size_t> &row : counts) {
        all.push_back(row[to]);
    }
    return all;
}

inline Bytes make_tensor(const Ask &ask, int rank, size_t segment, size_t n)
{
    Case c;
    c.type = ask.type;
    return plain_tensor(c, rank, segment, 0, n);
}

/** What `from` sends to `to` of a segment, as it comes out of the codec. */
inline Bytes expected(const Ask &ask, size_t s, int from, int to, bool leaves)
{
    const Segment &segment = ask.segments[s];
    const std::vector<size_t> &counts = segment.counts[(size_t)from];
    size_t elem = tw_type_bytes(ask.type), first = sum(counts, (size_t)to), n = counts[(size_t)to];
    Bytes whole = make_tensor(ask, from, s, sum(counts, counts.size()));
    Bytes plain(whole.begin() + (long)(first * elem), whole.begin() + (long)((first + n) * elem));
    if (!leaves || ask.codec.empty() || segment.codec == "plain" || n == 0) {
        return plain;
    }
    tw_quant_params_t params = {};
    params.codec = parse_codec(segment.codec.empty() ? ask.codec : segment.codec);
    tw_quant_t *codec;
    EXPECT_EQ(tw_quant_create(&params, &codec), TW_OK);
    Bytes encoded(tw_quant_encoded_bytes(&params.codec, n)), decoded(n * elem);
    tw_quant_args_t args = {};
    args.type = ask.type;
    args.factor = 1;
    args.seed = tw_qop_seed(TW_SEED_RANK, TW_COLL_ALLTOALL, SEED, from);
    args.step = STEP;
    tw_quant_segment_t run = {};
    run.src = plain.data();
    run.dst = encoded.data();
    run.n_elems = n;
    run.tensor = (uint32_t)s;
    run.first_elem = first;
    EXPECT_EQ(tw_quant_encode(codec, &args, &run, 1), TW_OK);
    run.src = encoded.data();
    run.dst = decoded.data();
    EXPECT_EQ(tw_quant_decode(codec, &args, &run, 1), TW_OK);
    tw_quant_destroy(codec);
    return decoded;
}

/** A rank's arguments and memory. */
struct Rank {
    std::vector<Bytes> src, dst;
    std::vector<std::vector<size_t>> recv_counts;
    std::vector<tw_quant_codec_t> own;
    std::vector<tw_coll_segment_t> segments;
    tw_quant_codec_t codec = {};
    tw_coll_args_t args = {};

    Rank(const Ask &ask, int rank) : own(ask.segments.size()), segments(ask.segments.size())
    {
        size_t elem = tw_type_bytes(ask.type);
        for (size_t s = 0; s < segments.size(); s++) {
            const std::vector<size_t> &counts = ask.segments[s].counts[(size_t)rank];
            recv_counts.push_back(column(ask.segments[s].counts, (size_t)rank));
            size_t n = sum(counts, counts.size()), n_in = sum(recv_counts[s], recv_counts[s].size());
            src.push_back(make_tensor(ask, rank, s, n));
            dst.emplace_back(std::max(n_in, ask.in_place ? n : 0) * elem + 1, (char)0x5a);
            if (ask.in_place) {
                std::copy(src[s].begin(), src[s].end(), dst[s].begin());
            }
            segments[s].src = ask.in_place ? nullptr : src[s].data();
            segments[s].dst = dst[s].data();
            segments[s].n_elems = n;
            segments[s].counts = counts.data();
            segments[s].tensor = (uint32_t)s;
            segments[s].unquantized = ask.segments[s].codec == "plain";
            if (!ask.segments[s].codec.empty() && !segments[s].unquantized) {
                own[s] = parse_codec(ask.segments[s].codec);
                segments[s].codec = &own[s];
            }
        }
        for (size_t s = 0; s < segments.size(); s++) {
            segments[s].recv_counts = recv_counts[s].data();
        }
        args.op = TW_COLL_ALLTOALL;
        args.type = ask.type;
        args.segments = segments.data();
        args.n_segments = segments.size();
        args.seed = SEED;
        args.step = STEP;
        args.force_codec = 1;
        if (!ask.codec.empty()) {
            codec = parse_codec(ask.codec);
            args.codec = &codec;
        }
    }
};

/** Run it as a rank: "" if its result is what it should be, and every byte that left the node was planned. */
inline std::string check_rank(tw_coll_t *coll, const Ask &ask)
{
    int rank = tw_coll_rank(coll);
    Rank own(ask, rank);
    tw_coll_counters_t before, after;
    uint64_t planned = 0;
    Plan became;
    if (tw_coll_planned_inter_node_bytes(coll, &own.args, &planned) != TW_OK) {
        return "it could not be planned";
    }
    tw_coll_counters_get(coll, &before);
    tw_status_t status = run_and_note(coll, &own.args, &became);
    if (status != TW_OK) {
        return tw_status_string(status);
    }
    tw_coll_counters_get(coll, &after);
    if (after.inter_node_bytes - before.inter_node_bytes != planned) {
        return std::to_string(planned) + " bytes were planned, sent were " +
               std::to_string(after.inter_node_bytes - before.inter_node_bytes);
    }
    if (became.plan.quantized != !ask.codec.empty()) {
        return "it was not quantized, or was";
    }
    for (size_t s = 0; s < ask.segments.size(); s++) {
        size_t at = 0;
        for (int from = 0; from < tw_coll_size(coll); from++) {
            bool leaves = tw_coll_node_of(coll, from) != tw_coll_node_of(coll, rank);
            Bytes want = expected(ask, s, from, rank, leaves);
            if (!std::equal(want.begin(), want.end(), own.dst[s].begin() + (long)at)) {
                return "segment " + std::to_string(s) + " from " + std::to_string(from) + " is wrong";
            }
            at += want.size();
        }
        if (!ask.in_place && own.dst[s][at] != (char)0x5a) {
            return "written behind segment " + std::to_string(s);
        }
    }
    return "";
}

inline Counts random_counts(std::mt19937 &random, int world, size_t most)
{
    Counts counts((size_t)world, std::vector<size_t>((size_t)world));
    for (std::vector<size_t> &row : counts) {
        for (size_t &n : row) {
            n = random() % 4 == 0 ? 0 : random() % 5 == 0 ? random() % 9 : random() % most;
        }
    }
    return counts;
}

} // namespace tw::alltoall

#endif
