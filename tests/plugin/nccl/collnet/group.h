/** What NCCL's proxy does with a collnet plugin, for tests: every version's table behind one face, and
 *  processes that exchange handles. It keeps NCCL's rules: one connect, of all ranks; a failed one takes the
 *  listener with it; a NULL request means "again"; send and receive buffers are slots that are used again and
 *  again, registered once. */
#ifndef TW_TESTS_PLUGIN_NCCL_COLLNET_GROUP_H
#define TW_TESTS_PLUGIN_NCCL_COLLNET_GROUP_H

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plugin/nccl/abi/collnet.h"
#include "tests/plugin/nccl/net/proxy.h"

namespace group
{

using proxy::expect;

/** One version's functions. */
class CollNet
{
  public:
    struct Window {
        size_t bytes_per_rank, offset, bytes;
    };
    virtual ~CollNet() = default;
    virtual tw_nccl_result_t init() = 0;
    virtual tw_nccl_result_t listen(void *handle, void **listener) = 0;
    virtual tw_nccl_result_t connect(void **handles, int n, int rank, void *listener, void **comm) = 0;
    virtual tw_nccl_result_t support(int type, int op, int *supported) = 0;
    virtual tw_nccl_result_t register_memory(void *comm, void *data, size_t bytes, void **mhandle) = 0;
    virtual tw_nccl_result_t deregister_memory(void *comm, void *mhandle) = 0;
    virtual tw_nccl_result_t allreduce(void *comm, void *send, void *receive, size_t count, int type, int op,
                                       void **request) = 0;
    virtual tw_nccl_result_t allgather(void *comm, void *send, void *receive, const Window &window,
                                       void **request) = 0;
    virtual tw_nccl_result_t reducescatter(void *comm, void *send, void *receive, const Window &window,
                                           int type, int op, void **request) = 0;
    virtual tw_nccl_result_t flush(void *comm, void *data, int bytes, void **request) = 0;
    virtual tw_nccl_result_t test(void *request, int *done, int *size) = 0;
    virtual tw_nccl_result_t close(void *comm) = 0;
    virtual tw_nccl_result_t close_listen(void *listener) = 0;
    virtual tw_nccl_result_t finalize() = 0;
};

constexpr int first_version = 8, last_version = 12;
std::unique_ptr<CollNet> version(int number);

constexpr int ranks_max = 8, word_bytes = 256;

/** Shared by all processes of a group. */
struct Board {
    std::atomic<int> arrived;
    std::atomic<uint8_t> words[ranks_max][word_bytes];
};

/** A rank's place in its group. */
class Place
{
  public:
    Place(Board *board, int rank, int n) : board_(board), rank_(rank), n_(n)
    {
    }
    int rank() const
    {
        return rank_;
    }
    int n() const
    {
        return n_;
    }
    /** Wait until all ranks have come to this point; n_here: only so many are left. */
    void meet(int n_here = 0) const;
    /** Exchange words of the same size; returns those of all ranks. */
    std::vector<std::vector<uint8_t>> swap(const void *word, size_t bytes) const;

  private:
    Board *board_;
    int rank_, n_;
    mutable int n_met_ = 0;
};

/** Listen, exchange handles, connect, close the listener. */
void *join(CollNet &net, const Place &place);
/** The result of connecting, where it may fail. */
tw_nccl_result_t try_join(CollNet &net, const Place &place, void **comm);

/** Post again and again until a request is given. */
void *taken(const std::function<tw_nccl_result_t(void **request)> &post);
/** Test a request once. */
bool is_done(CollNet &net, void *request, size_t bytes);
void finish(CollNet &net, void *request, size_t bytes);
/** Test a request until it is an error, which is returned. */
tw_nccl_result_t failure(CollNet &net, void *request);

using Body = std::function<void(const Place &place)>;
/** Run the body on n ranks, each a process; what went wrong in any, with what it logged, or "". */
std::string run(int n, const Body &body, const std::map<std::string, std::string> &env = {},
                double limit_sec = 60);

} // namespace group

#endif
