/** Every shape of an operation against a reference: worlds x sizes x types x places x vectors of tensors. */
#ifndef TW_TESTS_COLLECTIVES_SWEEP_H
#define TW_TESTS_COLLECTIVES_SWEEP_H

#include <string>
#include <vector>

#include "tests/collectives/world.h"

namespace tw
{

/** One operation: what all ranks post. */
struct Case {
    tw_coll_op_t op = TW_COLL_ALLGATHER;
    std::string algo;
    tw_type_t type = TW_TYPE_FP32;
    tw_coll_reduction_t reduction = TW_COLL_SUM;
    std::vector<size_t> n_elems; /**< of each segment */
    bool in_place = false;
    bool uneven = false; /**< shards of odd sizes, some empty, instead of the even split */
    int root = 0;

    std::string name() const;
};

/** A case in bf16. */
inline Case make_case(tw_coll_op_t op, const char *algo, const std::vector<size_t> &n_elems)
{
    Case c;
    c.op = op;
    c.algo = algo;
    c.type = TW_TYPE_BF16;
    c.n_elems = n_elems;
    return c;
}

/** The sums of a case over all ranks, in fp64. Empty for other operations. */
struct Reference {
    Reference(const Case &c, int world);
    std::vector<std::vector<double>> sum, magnitude; /**< of each segment; magnitude: of absolute values */
};

/** What a rank brings to a case and where the result goes: buffers, segments, arguments. */
class Job
{
  public:
    Job(const Case &c, int world, int rank);
    const tw_coll_args_t *args() const
    {
        return &args_;
    }
    /** Compare what is in the buffers now with what belongs there; the empty string, or what is wrong.
     *  n_roundings: of the path of a sum, to the tensor's type. */
    std::string check(const Reference &reference, int n_roundings) const;
    /** The result, without what belongs to this rank alone. */
    std::vector<uint8_t> result() const;

  private:
    void fill(size_t s);
    std::string check_segment(const Reference &reference, size_t s, int n_roundings) const;
    std::string check_sum(const Reference &reference, size_t s, size_t first, size_t n, const uint8_t *at,
                          int n_roundings) const;
    std::string check_bytes(int source, size_t s, size_t first, size_t n, const uint8_t *at) const;

    Case case_;
    int world_, rank_;
    size_t elem_bytes_;
    std::vector<std::vector<uint8_t>> src_, dst_;
    std::vector<std::vector<size_t>> counts_, recv_counts_;
    std::vector<tw_coll_segment_t> segments_;
    tw_coll_args_t args_;
};

/** Worlds of 1 to 8 ranks, each on a node of its own, and grids of nodes and ranks, even, uneven and
 *  interleaved. */
std::vector<std::vector<int>> all_worlds();

/** Run every case in every world, in order; fails with the case's name and the rank. Reductions:
 *  roundings(world) says how often the longest path rounds to the tensor's type. Results that must be the
 *  same on all ranks are compared. */
void sweep(const std::vector<std::vector<int>> &worlds, const std::vector<Case> &cases,
           int (*roundings)(int world, int n_nodes));

/** All sizes, types, places and vectors of tensors for an operation and algorithm. chunk_bytes: what
 *  TW_COLL_CHUNK is. */
std::vector<Case> all_cases(tw_coll_op_t op, const std::string &algo, size_t chunk_bytes);

} // namespace tw

#endif
