/** What NCCL's proxy does with a net plugin, for tests: every version's table behind one face, and two
 *  processes that exchange handles and words. It keeps NCCL's rules: NULL connections and requests mean
 *  "again", no request is tested after it is done, memory is registered before use. */
#ifndef TW_TESTS_PLUGIN_NCCL_NET_PROXY_H
#define TW_TESTS_PLUGIN_NCCL_NET_PROXY_H

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plugin/nccl/abi/net.h"
#include "tests/common/process.h"

namespace proxy
{

/** One version's functions. */
class Net
{
  public:
    virtual ~Net() = default;
    virtual tw_nccl_result_t init() = 0;
    virtual tw_nccl_result_t listen(void *handle, void **comm) = 0;
    virtual tw_nccl_result_t connect(void *handle, void **comm) = 0;
    virtual tw_nccl_result_t accept(void *listener, void **comm) = 0;
    virtual tw_nccl_result_t register_memory(void *comm, void *data, size_t bytes, void **mhandle) = 0;
    virtual tw_nccl_result_t deregister_memory(void *comm, void *mhandle) = 0;
    virtual tw_nccl_result_t send(void *comm, const void *data, size_t bytes, int tag, void *mhandle,
                                  void **request) = 0;
    virtual tw_nccl_result_t receive(void *comm, int n, void **data, size_t *sizes, int *tags,
                                     void **mhandles, void **request) = 0;
    virtual tw_nccl_result_t test(void *request, int *done, int *sizes) = 0;
    virtual tw_nccl_result_t close_send(void *comm) = 0;
    virtual tw_nccl_result_t close_receive(void *comm) = 0;
    virtual tw_nccl_result_t close_listen(void *comm) = 0;
    virtual tw_nccl_result_t finalize() = 0;
};

/** What NCCL says besides, of all that is begun or posted from now on: from v10 on. */
struct Told {
    tw_nccl_net_config_t config = {-1};
    tw_nccl_profiler_t profiler = nullptr;
    void *phandle = nullptr;
};
Told &told();

constexpr int first_version = 7, last_version = 12;
std::unique_ptr<Net> version(int number);

using Handle = std::vector<char>; /**< TW_NCCL_HANDLE_BYTES */

/** What is wrong: thrown by everything below, so that a process ends with it. */
void expect(bool holds, const std::string &what);

/** A channel to the other process, which carries bytes in order. */
class Channel
{
  public:
    explicit Channel(int fd) : fd_(fd)
    {
    }
    void tell(const Handle &bytes) const;
    Handle hear(size_t bytes) const;
    /** Wait until both processes have come to this point. */
    void meet() const;
    int fd() const
    {
        return fd_;
    }

  private:
    int fd_;
};

/** Repeat until it returns a connection; fails on any error, or after a time that no healthy run needs. */
void *until_connected(const std::function<tw_nccl_result_t(void **comm)> &call);
/** Connections of both kinds: listen, exchange handles through the channel, connect, accept. */
void *make_receiver(Net &net, const Channel &channel);
void *make_sender(Net &net, const Channel &channel);

/** A message under way. */
struct Message {
    void *request = nullptr, *comm = nullptr;
    std::vector<void *> mhandles;
    std::vector<std::vector<uint8_t>> buffers;
    std::vector<size_t> expected_bytes, seeds;
    bool is_send = false;
};
std::vector<uint8_t> pattern(size_t bytes, size_t seed);
/** Post until it is taken. The buffers of a receive have `spare` bytes more than will come. */
Message send(Net &net, void *comm, size_t bytes, int tag, size_t seed);
Message receive(Net &net, void *comm, const std::vector<size_t> &bytes, const std::vector<int> &tags,
                const std::vector<size_t> &seeds, size_t spare = 0);
/** Test a message once: true if it is done, and what came is right. */
bool is_done(Net &net, Message &message);
void finish(Net &net, Message &message);

using Body = std::function<void(const Channel &channel)>;
/** Run both in processes of their own; what went wrong in either, with what they logged, or "". */
std::string run_pair(const Body &one, const Body &other, const std::map<std::string, std::string> &env = {},
                     double limit_sec = 60);

} // namespace proxy

#endif
