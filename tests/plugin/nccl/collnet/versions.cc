/* Every version's table behind one face. */
#include "tests/plugin/nccl/collnet/group.h"

extern "C" {
extern const tw_nccl_collnet_v8_t ncclCollNetPlugin_v8;
extern const tw_nccl_collnet_v9_t ncclCollNetPlugin_v9;
extern const tw_nccl_collnet_v10_t ncclCollNetPlugin_v10;
extern const tw_nccl_collnet_v11_t ncclCollNetPlugin_v11;
extern const tw_nccl_collnet_v12_t ncclCollNetPlugin_v12;
}

namespace group
{

namespace
{

template <int number, typename Table, typename Part>
class CollNetOf : public CollNet
{
  public:
    explicit CollNetOf(const Table &table) : table_(table)
    {
    }
    tw_nccl_result_t init() override
    {
        if constexpr (number >= 11) {
            return table_.init(&context_, 1, nullptr);
        } else {
            return table_.init(nullptr);
        }
    }
    tw_nccl_result_t listen(void *handle, void **listener) override
    {
        if constexpr (number >= 11) {
            return table_.listen(context_, 0, handle, listener);
        } else {
            return table_.listen(0, handle, listener);
        }
    }
    tw_nccl_result_t connect(void **handles, int n, int rank, void *listener, void **comm) override
    {
        return table_.connect(handles, n, rank, listener, comm);
    }
    tw_nccl_result_t support(int type, int op, int *supported) override
    {
        return table_.support(type, op, supported);
    }
    tw_nccl_result_t register_memory(void *comm, void *data, size_t bytes, void **mhandle) override
    {
        return table_.reg_mr(comm, data, bytes, TW_NCCL_PTR_HOST, mhandle);
    }
    tw_nccl_result_t deregister_memory(void *comm, void *mhandle) override
    {
        return table_.dereg_mr(comm, mhandle);
    }
    tw_nccl_result_t allreduce(void *comm, void *send, void *receive, size_t count, int type, int op,
                               void **request) override
    {
        if constexpr (number == 8) {
            return table_.iallreduce(comm, send, receive, (int)count, type, op, nullptr, nullptr, request);
        } else {
            return table_.iallreduce(comm, send, receive, count, type, op, nullptr, nullptr, request);
        }
    }
    tw_nccl_result_t allgather(void *comm, void *send, void *receive, const Window &window,
                               void **request) override
    {
        Part part = part_of(receive, window);
        return table_.iallgather(comm, send, 1, &part, window.bytes_per_rank, window.offset, window.bytes,
                                 nullptr, request);
    }
    tw_nccl_result_t reducescatter(void *comm, void *send, void *receive, const Window &window, int type,
                                   int op, void **request) override
    {
        Part part = part_of(send, window);
        return table_.ireducescatter(comm, 1, &part, receive, window.bytes_per_rank, window.offset,
                                     window.bytes, type, op, nullptr, request);
    }
    tw_nccl_result_t flush(void *comm, void *data, int bytes, void **request) override
    {
        return table_.iflush(comm, data, bytes, nullptr, request);
    }
    tw_nccl_result_t test(void *request, int *done, int *size) override
    {
        return table_.test(request, done, size);
    }
    tw_nccl_result_t close(void *comm) override
    {
        return table_.close_coll(comm);
    }
    tw_nccl_result_t close_listen(void *listener) override
    {
        return table_.close_listen(listener);
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
    static Part part_of(void *address, const Window &window)
    {
        Part part = {};
        part.address = address;
        part.bytes = (decltype(part.bytes))window.bytes;
        return part;
    }
    const Table &table_;
    void *context_ = nullptr;
};

template <int number, typename Part, typename Table>
std::unique_ptr<CollNet> make(const Table &table)
{
    return std::make_unique<CollNetOf<number, Table, Part>>(table);
}

} // namespace

std::unique_ptr<CollNet> version(int number)
{
    switch (number) {
    case 8:
        return make<8, tw_nccl_sge_v8_t>(ncclCollNetPlugin_v8);
    case 9:
        return make<9, tw_nccl_sge_v9_t>(ncclCollNetPlugin_v9);
    case 10:
        return make<10, tw_nccl_sge_v9_t>(ncclCollNetPlugin_v10);
    case 11:
        return make<11, tw_nccl_sge_v9_t>(ncclCollNetPlugin_v11);
    default:
        return make<12, tw_nccl_sge_v9_t>(ncclCollNetPlugin_v12);
    }
}

} // namespace group
