/* Every version's table behind one face. */
#include "tests/plugin/nccl/net/proxy.h"

extern "C" {
extern const tw_nccl_net_v7_t ncclNetPlugin_v7;
extern const tw_nccl_net_v8_t ncclNetPlugin_v8;
extern const tw_nccl_net_v9_t ncclNetPlugin_v9;
extern const tw_nccl_net_v10_t ncclNetPlugin_v10;
extern const tw_nccl_net_v11_t ncclNetPlugin_v11;
extern const tw_nccl_net_v12_t ncclNetPlugin_v12;
}

namespace proxy
{

Told &told()
{
    static Told all;
    return all;
}

namespace
{

template <int number, typename Table>
class NetOf : public Net
{
  public:
    explicit NetOf(const Table &table) : table_(table)
    {
    }
    tw_nccl_result_t init() override
    {
        if constexpr (number >= 11) {
            return table_.init(&context_, 1, &told().config, nullptr, told().profiler);
        } else if constexpr (number == 10) {
            return table_.init(nullptr, told().profiler);
        } else {
            return table_.init(nullptr);
        }
    }
    tw_nccl_result_t listen(void *handle, void **comm) override
    {
        if constexpr (number >= 11) {
            return table_.listen(context_, 0, handle, comm);
        } else {
            return table_.listen(0, handle, comm);
        }
    }
    tw_nccl_result_t connect(void *handle, void **comm) override
    {
        void *device_handle = nullptr;
        if constexpr (number >= 11) {
            return table_.connect(context_, 0, handle, comm, &device_handle);
        } else if constexpr (number == 10) {
            return table_.connect(0, &told().config, handle, comm, &device_handle);
        } else {
            return table_.connect(0, handle, comm, &device_handle);
        }
    }
    tw_nccl_result_t accept(void *listener, void **comm) override
    {
        void *device_handle = nullptr;
        return table_.accept(listener, comm, &device_handle);
    }
    tw_nccl_result_t register_memory(void *comm, void *data, size_t bytes, void **mhandle) override
    {
        return table_.reg_mr(comm, data, bytes, TW_NCCL_PTR_HOST, mhandle);
    }
    tw_nccl_result_t deregister_memory(void *comm, void *mhandle) override
    {
        return table_.dereg_mr(comm, mhandle);
    }
    tw_nccl_result_t send(void *comm, const void *data, size_t bytes, int tag, void *mhandle,
                          void **request) override
    {
        void *at = (void *)(uintptr_t)data;
        if constexpr (number >= 10) {
            return table_.isend(comm, at, bytes, tag, mhandle, told().phandle, request);
        } else {
            return table_.isend(comm, at, bytes, tag, mhandle, request);
        }
    }
    tw_nccl_result_t receive(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                             void **request) override
    {
        if constexpr (number >= 10) {
            std::vector<void *> phandles((size_t)n, told().phandle);
            return table_.irecv(comm, n, data, sizes, tags, mhandles, phandles.data(), request);
        } else if constexpr (number == 9) {
            return table_.irecv(comm, n, data, sizes, tags, mhandles, request);
        } else {
            std::vector<int> narrow(sizes, sizes + n);
            return table_.irecv(comm, n, data, narrow.data(), tags, mhandles, request);
        }
    }
    tw_nccl_result_t test(void *request, int *done, int *sizes) override
    {
        return table_.test(request, done, sizes);
    }
    tw_nccl_result_t close_send(void *comm) override
    {
        return table_.close_send(comm);
    }
    tw_nccl_result_t close_receive(void *comm) override
    {
        return table_.close_recv(comm);
    }
    tw_nccl_result_t close_listen(void *comm) override
    {
        return table_.close_listen(comm);
    }
    tw_nccl_result_t finalize() override
    {
        if constexpr (number >= 11) {
            void *context = context_;
            context_ = nullptr;
            return table_.finalize(context);
        } else {
            return TW_NCCL_SUCCESS;
        }
    }

  private:
    const Table &table_;
    void *context_ = nullptr;
};

template <int number, typename Table>
std::unique_ptr<Net> make(const Table &table)
{
    return std::make_unique<NetOf<number, Table>>(table);
}

} // namespace

std::unique_ptr<Net> version(int number)
{
    switch (number) {
    case 7:
        return make<7>(ncclNetPlugin_v7);
    case 8:
        return make<8>(ncclNetPlugin_v8);
    case 9:
        return make<9>(ncclNetPlugin_v9);
    case 10:
        return make<10>(ncclNetPlugin_v10);
    case 11:
        return make<11>(ncclNetPlugin_v11);
    default:
        return make<12>(ncclNetPlugin_v12);
    }
}

} // namespace proxy
