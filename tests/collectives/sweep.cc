#include "tests/collectives/sweep.h"

#include <cmath>
#include <cstring>
#include <mutex>

#include "quant/quant.h"
#include "tests/common/sanitized.h"

namespace tw
{

namespace
{

uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t key(int rank, size_t segment, size_t elem)
{
    return mix(mix((uint64_t)rank * 1000003 + segment) + elem);
}

/* What rank r contributes: values of both signs and several magnitudes. */
float value(int rank, size_t segment, size_t elem)
{
    uint64_t k = key(rank, segment, elem);

    return std::ldexp((float)((int)(k & 0xffff) - 0x8000), -15 + (int)(k >> 16 & 7) - 4);
}

double to_double(tw_type_t type, const uint8_t *at)
{
    uint32_t bits = 0;
    float f;

    if (type == TW_TYPE_FP32) {
        std::memcpy(&f, at, 4);
        return f;
    }
    std::memcpy(&bits, at, 2);
    if (type == TW_TYPE_BF16) {
        bits <<= 16;
        std::memcpy(&f, &bits, 4);
        return f;
    }
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double magnitude = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

bool is_reduction(tw_coll_op_t op)
{
    return op == TW_COLL_REDUCE_SCATTER || op == TW_COLL_ALLREDUCE;
}

/* What rank r holds of a segment, as the tensor's bytes. */
void put(tw_type_t type, int rank, size_t segment, size_t first, size_t n, uint8_t *at)
{
    for (size_t i = 0; i < n; i++) {
        float f = value(rank, segment, first + i);
        if (type == TW_TYPE_BYTE) {
            at[i] = (uint8_t)key(rank, segment, first + i);
        } else {
            tw_convert_from_fp32(type, &f, 1.0f, at + i * tw_type_bytes(type), 1);
        }
    }
}

/* Counts of odd sizes that sum up to n, some of them 0. */
std::vector<size_t> uneven_counts(size_t n, int world, int salt)
{
    std::vector<size_t> counts((size_t)world);
    size_t left = n;
    for (size_t r = 0; r + 1 < counts.size(); r++) {
        uint64_t k = mix((uint64_t)salt * 77 + r);
        counts[r] = k % 3 == 0 ? 0 : left * (k % 5) / 6;
        left -= counts[r];
    }
    counts.back() = left;
    return counts;
}

/* Alltoall: what `from` sends to `to` of a segment of nominal size n. */
size_t pair_count(const Case &c, size_t s, int world, int from, int to)
{
    size_t n = c.n_elems[s];
    if (!c.uneven) {
        return tw_coll_shard_elems(n, world, to);
    }
    uint64_t k = mix((uint64_t)(from * 31 + to) + s);
    return k % 4 == 0 ? 0 : (n / (size_t)world + 1) * (k % 7) / 4;
}

size_t sum(const std::vector<size_t> &v, size_t n)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        total += v[i];
    }
    return total;
}

double unit_roundoff(tw_type_t type)
{
    return std::ldexp(1, type == TW_TYPE_FP32 ? -24 : type == TW_TYPE_FP16 ? -11 : -8);
}

double smallest_step(tw_type_t type)
{
    return std::ldexp(1, type == TW_TYPE_FP32 ? -149 : type == TW_TYPE_FP16 ? -24 : -133);
}

} // namespace

std::string Case::name() const
{
    std::string text = std::string(tw_coll_op_name(op)) + " " + algo + " " + tw_type_name(type);
    text += reduction == TW_COLL_MEAN ? " mean" : "";
    text += in_place ? " in place" : "";
    text += uneven ? " uneven" : "";
    text += root ? " root " + std::to_string(root) : "";
    for (size_t n : n_elems) {
        text += " " + std::to_string(n);
    }
    return text;
}

Reference::Reference(const Case &c, int world)
{
    size_t elem_bytes = tw_type_bytes(c.type);

    for (size_t s = 0; s < c.n_elems.size() && is_reduction(c.op); s++) {
        size_t n = c.n_elems[s];
        std::vector<uint8_t> x(n * elem_bytes);
        sum.emplace_back(n);
        magnitude.emplace_back(n);
        for (int r = 0; r < world; r++) {
            put(c.type, r, s, 0, n, x.data());
            for (size_t i = 0; i < n; i++) {
                double d = to_double(c.type, &x[i * elem_bytes]);
                sum[s][i] += d;
                magnitude[s][i] += std::fabs(d);
            }
        }
    }
}

Job::Job(const Case &c, int world, int rank)
    : case_(c), world_(world), rank_(rank), elem_bytes_(tw_type_bytes(c.type)), args_()
{
    size_t n = c.n_elems.size();

    src_.resize(n);
    dst_.resize(n);
    counts_.resize(n);
    recv_counts_.resize(n);
    segments_.resize(n);
    for (size_t s = 0; s < n; s++) {
        fill(s);
    }
    args_.op = c.op;
    args_.type = c.type;
    args_.segments = segments_.data();
    args_.n_segments = n;
    args_.reduction = c.reduction;
    args_.root = c.root;
    args_.algo = case_.algo.c_str();
}

void Job::fill(size_t s)
{
    size_t n = case_.n_elems[s], n_src = n, n_dst = n, own = 0, own_at = 0;
    size_t r = (size_t)rank_, w = (size_t)world_;
    tw_coll_segment_t &segment = segments_[s];

    counts_[s] = uneven_counts(n, world_, (int)s + (int)n);
    if (!case_.uneven) {
        for (int q = 0; q < world_; q++) {
            counts_[s][(size_t)q] = tw_coll_shard_elems(n, world_, q);
        }
    }
    if (case_.op == TW_COLL_ALLTOALL) {
        recv_counts_[s].resize(w);
        for (int q = 0; q < world_; q++) {
            counts_[s][(size_t)q] = pair_count(case_, s, world_, rank_, q);
            recv_counts_[s][(size_t)q] = pair_count(case_, s, world_, q, rank_);
        }
        n_src = sum(counts_[s], w);
        n_dst = sum(recv_counts_[s], w);
        segment.recv_counts = recv_counts_[s].data();
        segment.n_elems = n_src;
    } else {
        segment.n_elems = n;
    }
    own = counts_[s][r];
    own_at = sum(counts_[s], r);
    if (case_.op == TW_COLL_ALLGATHER) {
        n_src = own;
    }
    if (case_.op == TW_COLL_REDUCE_SCATTER) {
        n_dst = own;
    }
    segment.counts = case_.uneven || case_.op == TW_COLL_ALLTOALL ? counts_[s].data() : nullptr;

    /* One guard byte in front: pointers are as unaligned as can be for bytes, element-aligned else. */
    src_[s].assign(elem_bytes_ + n_src * elem_bytes_, 0xaa);
    dst_[s].assign(elem_bytes_ + std::max(n_dst, case_.in_place ? n_src : 0) * elem_bytes_, 0xbb);
    uint8_t *src = src_[s].data() + elem_bytes_, *dst = dst_[s].data() + elem_bytes_;
    if (case_.op == TW_COLL_BROADCAST) {
        if (rank_ == case_.root) {
            put(case_.type, rank_, s, 0, n, dst);
        }
        segment.dst = dst;
        return;
    }
    size_t first = case_.op == TW_COLL_ALLGATHER ? own_at : 0;
    put(case_.type, rank_, s, first, n_src, src);
    segment.src = src;
    segment.dst = dst;
    if (!case_.in_place) {
        return;
    }
    if (case_.op == TW_COLL_REDUCE_SCATTER) {
        segment.dst = s % 2 ? nullptr : src + own_at * elem_bytes_;
        return;
    }
    if (n_src) {
        std::memcpy(dst + first * elem_bytes_, src, n_src * elem_bytes_);
    }
    segment.src = s % 2 ? nullptr : dst + first * elem_bytes_;
}

std::string Job::check_bytes(int source, size_t s, size_t first, size_t n, const uint8_t *at) const
{
    std::vector<uint8_t> expected(n * elem_bytes_);
    put(case_.type, source, s, first, n, expected.data());
    for (size_t i = 0; i < expected.size(); i++) {
        if (expected[i] != at[i]) {
            return "segment " + std::to_string(s) + ", from rank " + std::to_string(source) + ", byte " +
                   std::to_string(i);
        }
    }
    return "";
}

/* |error| <= sum of all roundings: of partial sums to the type, and of fp32 additions. */
std::string Job::check_sum(const Reference &reference, size_t s, size_t first, size_t n, const uint8_t *at,
                           int n_roundings) const
{
    double u = unit_roundoff(case_.type), factor = case_.reduction == TW_COLL_MEAN ? 1.0 / world_ : 1;
    double relative = std::pow(1 + u, n_roundings) * std::pow(1 + std::ldexp(1, -24), world_ + 2) - 1;

    for (size_t i = 0; i < n; i++) {
        double exact = reference.sum[s][first + i] * factor;
        double bound =
            reference.magnitude[s][first + i] * relative * factor + n_roundings * smallest_step(case_.type);
        double got = to_double(case_.type, at + i * elem_bytes_);
        if (!(std::fabs(got - exact) <= bound)) {
            return "segment " + std::to_string(s) + ", element " + std::to_string(first + i) + ": " +
                   std::to_string(got) + " is not " + std::to_string(exact) + " +- " + std::to_string(bound);
        }
    }
    return "";
}

std::string Job::check_segment(const Reference &reference, size_t s, int n_roundings) const
{
    const tw_coll_segment_t &segment = segments_[s];
    const uint8_t *dst = (const uint8_t *)segment.dst;
    size_t own_at = sum(counts_[s], (size_t)rank_), at = 0;
    std::string wrong;

    switch (case_.op) {
    case TW_COLL_REDUCE_SCATTER:
        if (dst == nullptr) {
            dst = (const uint8_t *)segment.src + own_at * elem_bytes_;
        }
        return check_sum(reference, s, own_at, counts_[s][(size_t)rank_], dst, n_roundings);
    case TW_COLL_ALLREDUCE:
        return check_sum(reference, s, 0, segment.n_elems, dst, n_roundings);
    case TW_COLL_BROADCAST:
        return check_bytes(case_.root, s, 0, segment.n_elems, dst);
    case TW_COLL_ALLGATHER:
        for (int r = 0; r < world_ && wrong.empty(); r++) {
            wrong = check_bytes(r, s, at, counts_[s][(size_t)r], dst + at * elem_bytes_);
            at += counts_[s][(size_t)r];
        }
        return wrong;
    case TW_COLL_ALLTOALL:
        for (int r = 0; r < world_ && wrong.empty(); r++) {
            size_t before = 0, n = recv_counts_[s][(size_t)r];
            for (int q = 0; q < rank_; q++) {
                before += pair_count(case_, s, world_, r, q);
            }
            wrong = check_bytes(r, s, before, n, dst + at * elem_bytes_);
            at += n;
        }
        return wrong;
    default:
        return "";
    }
}

std::string Job::check(const Reference &reference, int n_roundings) const
{
    std::string wrong;
    for (size_t s = 0; s < segments_.size() && wrong.empty(); s++) {
        wrong = check_segment(reference, s, n_roundings);
    }
    for (size_t s = 0; s < segments_.size() && wrong.empty(); s++) {
        for (size_t i = 0; i < elem_bytes_ && wrong.empty(); i++) {
            if (src_[s][i] != 0xaa || dst_[s][i] != 0xbb) {
                wrong = "written in front of segment " + std::to_string(s);
            }
        }
    }
    return wrong;
}

std::vector<uint8_t> Job::result() const
{
    std::vector<uint8_t> all;
    for (size_t s = 0; s < segments_.size(); s++) {
        size_t own_at = sum(counts_[s], (size_t)rank_), n = segments_[s].n_elems;
        const uint8_t *dst = (const uint8_t *)segments_[s].dst;
        if (case_.op == TW_COLL_REDUCE_SCATTER) {
            n = counts_[s][(size_t)rank_];
            if (dst == nullptr) {
                dst = (const uint8_t *)segments_[s].src + own_at * elem_bytes_;
            }
        }
        if (case_.op == TW_COLL_ALLTOALL) {
            n = sum(recv_counts_[s], recv_counts_[s].size());
        }
        all.insert(all.end(), dst, dst + n * elem_bytes_);
    }
    return all;
}

std::vector<std::vector<int>> all_worlds()
{
    std::vector<std::vector<int>> worlds;
    for (int w = 1; w <= 8; w++) {
        worlds.push_back(nodes_of(std::vector<int>((size_t)w, 1)));
    }
    for (const std::vector<int> &grid : std::vector<std::vector<int>>{
             {3}, {8}, {2, 2}, {3, 3}, {2, 2, 2}, {4, 4}, {1, 2}, {3, 1, 2}, {2, 1, 4}, {1, 1, 3}}) {
        worlds.push_back(nodes_of(grid));
    }
    worlds.push_back({0, 1, 0, 1, 0});
    worlds.push_back({0, 1, 2, 0, 1, 2, 2});
    return worlds;
}

void sweep(const std::vector<std::vector<int>> &worlds, const std::vector<Case> &cases,
           int (*roundings)(int world, int n_nodes))
{
    for (const std::vector<int> &node_of : worlds) {
        World world(node_of);
        int w = world.size();
        std::vector<std::vector<std::vector<uint8_t>>> results((size_t)w);
        std::vector<Reference> references;
        std::mutex lock;
        for (const Case &c : cases) {
            references.emplace_back(c, w);
        }
        world.run([&](int rank) {
            int n_roundings = roundings(w, tw_coll_n_nodes(world.coll(rank)));
            for (size_t i = 0; i < cases.size(); i++) {
                Case c = cases[i];
                c.root %= w;
                Job job(c, w, rank);
                tw_status_t status = tw_coll_run(world.coll(rank), job.args());
                std::string wrong =
                    status == TW_OK ? job.check(references[i], n_roundings) : tw_status_string(status);
                results[(size_t)rank].push_back(c.op == TW_COLL_ALLREDUCE ? job.result()
                                                                          : std::vector<uint8_t>());
                std::lock_guard<std::mutex> guard(lock);
                if (!wrong.empty()) {
                    ADD_FAILURE() << w << " ranks on " << tw_coll_n_nodes(world.coll(rank)) << " nodes, rank "
                                  << rank << ": " << c.name() << ": " << wrong;
                }
                if (status != TW_OK) {
                    return;
                }
            }
        });
        for (int r = 1; r < w; r++) {
            for (size_t i = 0; i < cases.size() && results[(size_t)r].size() == cases.size(); i++) {
                EXPECT_EQ(results[(size_t)r][i] == results[0][i], true)
                    << w << " ranks, rank " << r << ": " << cases[i].name() << " differs from rank 0's";
            }
        }
        if (::testing::Test::HasFailure()) {
            return;
        }
    }
}

std::vector<Case> all_cases(tw_coll_op_t op, const std::string &algo, size_t chunk_bytes)
{
    std::vector<tw_type_t> types = {TW_TYPE_FP32, TW_TYPE_BF16,
                                    is_reduction(op) ? TW_TYPE_FP16 : TW_TYPE_BYTE};
    std::vector<Case> cases;
    for (tw_type_t type : types) {
        size_t chunk = chunk_bytes / tw_type_bytes(type);
        std::vector<std::vector<size_t>> shapes;
        for (size_t n : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1009}) {
            shapes.push_back({n});
        }
        shapes.push_back({chunk * 7 + 17});
        shapes.push_back({3, 0, 1, 17, 5});
        shapes.push_back({2, chunk * 4 + 1, 1, 0, 1009, 64});
        for (const std::vector<size_t> &shape : shapes) {
            for (int variant = 0; variant < 4; variant += tw::is_sanitized ? 3 : 1) {
                Case c;
                c.op = op;
                c.algo = algo;
                c.type = type;
                c.n_elems = shape;
                c.in_place = variant & 1;
                c.uneven = variant & 2;
                c.reduction = (shape[0] + (size_t)variant) % 2 ? TW_COLL_SUM : TW_COLL_MEAN;
                c.root = (int)shape[0] % 7;
                cases.push_back(c);
            }
        }
    }
    return cases;
}

} // namespace tw
