/* The tables of functions for NCCL, v8 to v12: thin layers over collnet.h. */
#include <limits.h>

#include "plugin/nccl/abi/collnet.h"
#include "plugin/nccl/collnet/collnet.h"
#include "plugin/nccl/interposer.h"
#include "plugin/nccl/log.h"
#include "plugin/nccl/net/properties.h"

/* ---- init ---------------------------------------------------------------------------------------------- */

/** Check the variables, so that an invalid value is logged before ranks connect. */
static tw_status_t check_settings(void)
{
    tw_collnet_settings_t settings;
    return tw_collnet_settings_read(&settings);
}

static tw_nccl_result_t init_v8(tw_nccl_logger_t logger)
{
    tw_net_context_t *context;
    tw_nccl_begin(logger);
    tw_status_t status = check_settings();
    return tw_nccl_result(status == TW_OK ? tw_net_context_shared(&context) : status);
}

static tw_nccl_result_t init_v11(void **context, uint64_t comm_id, tw_nccl_logger_t logger)
{
    tw_net_context_t *made = NULL;
    (void)comm_id;
    tw_nccl_begin(logger);
    tw_status_t status = check_settings();
    status = status == TW_OK ? tw_net_context_create(TW_NET_NO_CLASS, &made) : status;
    *context = made;
    return tw_nccl_result(status);
}

/* ---- communicators ------------------------------------------------------------------------------------- */

static tw_nccl_result_t listen_v8(int dev, void *handle, void **listen_comm)
{
    tw_collnet_listener_t *made = NULL;
    tw_status_t status = tw_collnet_listen(dev, handle, &made);
    *listen_comm = made;
    return tw_nccl_result(status);
}

static tw_nccl_result_t listen_v11(void *context, int dev, void *handle, void **listen_comm)
{
    (void)context;
    return listen_v8(dev, handle, listen_comm);
}

static tw_nccl_result_t close_listen(void *listen_comm)
{
    tw_collnet_listener_close(listen_comm);
    return TW_NCCL_SUCCESS;
}

/** Connect. After a failure NCCL does not close the listener, so this does. */
static tw_nccl_result_t connect_any(void **handles, int world, int rank, void *listen_comm, void **coll_comm)
{
    tw_collnet_comm_t *made = NULL;
    tw_status_t status = tw_collnet_connect(handles, world, rank, listen_comm, &made);
    if (status != TW_OK) {
        tw_collnet_listener_close(listen_comm);
    }
    *coll_comm = made;
    return tw_nccl_result(status);
}

static tw_nccl_result_t close_coll(void *coll_comm)
{
    tw_collnet_close(coll_comm);
    return TW_NCCL_SUCCESS;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static tw_nccl_result_t reg_mr(void *coll_comm, void *data, size_t bytes, int type, void **mhandle)
{
    tw_collnet_region_t *made = NULL;
    if (tw_net_check_memory(type) != TW_NCCL_SUCCESS) {
        return TW_NCCL_INVALID_ARGUMENT;
    }
    tw_status_t status = tw_collnet_register(coll_comm, data, bytes, &made);
    *mhandle = made;
    return tw_nccl_result(status);
}

static tw_nccl_result_t dereg_mr(void *coll_comm, void *mhandle)
{
    (void)coll_comm;
    tw_collnet_deregister(mhandle);
    return TW_NCCL_SUCCESS;
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static tw_nccl_result_t support(int nccl_type, int op, int *is_supported)
{
    tw_type_t type;
    *is_supported = op == TW_NCCL_SUM && tw_nccl_type_get(nccl_type, &type);
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t check_reduction(int nccl_type, int op, tw_type_t *type)
{
    TW_FAIL_IF(op != TW_NCCL_SUM || !tw_nccl_type_get(nccl_type, type), TW_NCCL_INVALID_ARGUMENT,
               "collnet: operation %d on type %d was not offered", op, nccl_type);
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t post_work(void *coll_comm, const tw_collnet_work_t *work, void **request)
{
    tw_collnet_request_t *made = NULL;
    tw_status_t status = tw_collnet_post(coll_comm, work, &made);
    *request = made;
    return tw_nccl_result(status);
}

static tw_nccl_result_t allreduce_v9(void *coll_comm, void *send_data, void *recv_data, size_t count,
                                     int nccl_type, int op, void *send_mhandle, void *recv_mhandle,
                                     void **request)
{
    tw_collnet_work_t work = {.op = TW_COLL_ALLREDUCE, .src = send_data, .dst = recv_data, .n_elems = count};
    tw_nccl_result_t result = check_reduction(nccl_type, op, &work.type);
    (void)send_mhandle, (void)recv_mhandle;
    return result == TW_NCCL_SUCCESS ? post_work(coll_comm, &work, request) : result;
}

static tw_nccl_result_t allreduce_v8(void *coll_comm, void *send_data, void *recv_data, int count,
                                     int nccl_type, int op, void *send_mhandle, void *recv_mhandle,
                                     void **request)
{
    TW_FAIL_IF(count < 0, TW_NCCL_INVALID_ARGUMENT, "collnet: an all-reduce of %d elements", count);
    return allreduce_v9(coll_comm, send_data, recv_data, (size_t)count, nccl_type, op, send_mhandle,
                        recv_mhandle, request);
}

static tw_nccl_result_t check_parts(int n_parts, size_t part_bytes, size_t window_bytes)
{
    TW_FAIL_IF(n_parts != 1 || part_bytes != window_bytes, TW_NCCL_INVALID_ARGUMENT,
               "collnet: a window of %zu bytes in %d parts, the first of %zu: one part is expected",
               window_bytes, n_parts, n_parts > 0 ? part_bytes : 0);
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t allgather_v9(void *coll_comm, void *send_data, int n_parts, tw_nccl_sge_v9_t *parts,
                                     size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                     void *send_mhandle, void **request)
{
    const tw_collnet_work_t work = {.op = TW_COLL_ALLGATHER,
                                    .type = TW_TYPE_BYTE,
                                    .src = send_data,
                                    .dst = parts[0].address,
                                    .n_elems = window_bytes,
                                    .window_first = window_offset,
                                    .elems_per_rank = bytes_per_rank};
    tw_nccl_result_t result = check_parts(n_parts, parts[0].bytes, window_bytes);
    (void)send_mhandle;
    return result == TW_NCCL_SUCCESS ? post_work(coll_comm, &work, request) : result;
}

static tw_nccl_result_t allgather_v8(void *coll_comm, void *send_data, int n_parts, tw_nccl_sge_v8_t *parts,
                                     size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                     void *send_mhandle, void **request)
{
    tw_nccl_sge_v9_t part = {.address = parts[0].address, .bytes = parts[0].bytes};
    return allgather_v9(coll_comm, send_data, n_parts, &part, bytes_per_rank, window_offset, window_bytes,
                        send_mhandle, request);
}

static tw_nccl_result_t check_elements(size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                       size_t elem_bytes)
{
    TW_FAIL_IF(bytes_per_rank % elem_bytes != 0 || window_offset % elem_bytes != 0 ||
                   window_bytes % elem_bytes != 0,
               TW_NCCL_INVALID_ARGUMENT,
               "collnet: a window of %zu bytes from %zu on, of %zu for each rank, cuts elements of %zu",
               window_bytes, window_offset, bytes_per_rank, elem_bytes);
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t reducescatter_v9(void *coll_comm, int n_parts, tw_nccl_sge_v9_t *parts,
                                         void *recv_data, size_t bytes_per_rank, size_t window_offset,
                                         size_t window_bytes, int nccl_type, int op, void *recv_mhandle,
                                         void **request)
{
    tw_collnet_work_t work = {.op = TW_COLL_REDUCE_SCATTER, .src = parts[0].address, .dst = recv_data};
    tw_nccl_result_t result = check_parts(n_parts, parts[0].bytes, window_bytes);
    (void)recv_mhandle;
    if (result == TW_NCCL_SUCCESS) {
        result = check_reduction(nccl_type, op, &work.type);
    }
    if (result != TW_NCCL_SUCCESS) {
        return result;
    }
    size_t elem_bytes = tw_type_bytes(work.type);
    work.n_elems = window_bytes / elem_bytes;
    work.window_first = window_offset / elem_bytes;
    work.elems_per_rank = bytes_per_rank / elem_bytes;
    result = check_elements(bytes_per_rank, window_offset, window_bytes, elem_bytes);
    return result == TW_NCCL_SUCCESS ? post_work(coll_comm, &work, request) : result;
}

static tw_nccl_result_t reducescatter_v8(void *coll_comm, int n_parts, tw_nccl_sge_v8_t *parts,
                                         void *recv_data, size_t bytes_per_rank, size_t window_offset,
                                         size_t window_bytes, int nccl_type, int op, void *recv_mhandle,
                                         void **request)
{
    tw_nccl_sge_v9_t part = {.address = parts[0].address, .bytes = parts[0].bytes};
    return reducescatter_v9(coll_comm, n_parts, &part, recv_data, bytes_per_rank, window_offset, window_bytes,
                            nccl_type, op, recv_mhandle, request);
}

/** Nothing needs a flush: received data are in host memory. */
static tw_nccl_result_t iflush(void *coll_comm, void *data, int bytes, void *mhandle, void **request)
{
    (void)coll_comm, (void)data, (void)bytes, (void)mhandle;
    *request = NULL;
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t test(void *request, int *done, int *size)
{
    size_t bytes = 0;
    tw_status_t status = tw_collnet_test(request, &bytes);
    *done = status == TW_OK;
    if (*done && size) {
        *size = bytes <= INT_MAX ? (int)bytes : INT_MAX;
    }
    return tw_nccl_result(status);
}

/* ---- tables -------------------------------------------------------------------------------------------- */

extern const tw_nccl_collnet_v8_t ncclCollNetPlugin_v8;
extern const tw_nccl_collnet_v9_t ncclCollNetPlugin_v9;
extern const tw_nccl_collnet_v10_t ncclCollNetPlugin_v10;
extern const tw_nccl_collnet_v11_t ncclCollNetPlugin_v11;
extern const tw_nccl_collnet_v12_t ncclCollNetPlugin_v12;

#define IN_ALL                                                                                        \
    .name = TW_NET_PLUGIN_NAME, .devices = tw_net_properties_devices, .connect = connect_any,         \
    .support = support, .reg_mr = reg_mr, .reg_mr_dma_buf = tw_net_reg_dma_buf, .dereg_mr = dereg_mr, \
    .iflush = iflush, .test = test, .close_coll = close_coll, .close_listen = close_listen

const tw_nccl_collnet_v8_t ncclCollNetPlugin_v8 = {
    IN_ALL,
    .init = init_v8,
    .properties = tw_net_properties_v8,
    .listen = listen_v8,
    .iallreduce = allreduce_v8,
    .iallgather = allgather_v8,
    .ireducescatter = reducescatter_v8,
};

#define WITH_SIZES \
    IN_ALL, .iallreduce = allreduce_v9, .iallgather = allgather_v9, .ireducescatter = reducescatter_v9
#define V9_AND_V10 WITH_SIZES, .init = init_v8, .properties = tw_net_properties_v9, .listen = listen_v8

const tw_nccl_collnet_v9_t ncclCollNetPlugin_v9 = {V9_AND_V10};
const tw_nccl_collnet_v10_t ncclCollNetPlugin_v10 = {V9_AND_V10};

#define WITH_CONTEXT WITH_SIZES, .init = init_v11, .listen = listen_v11, .finalize = tw_net_finalize

const tw_nccl_collnet_v11_t ncclCollNetPlugin_v11 = {
    WITH_CONTEXT,
    .properties = tw_net_properties_v11,
};

const tw_nccl_collnet_v12_t ncclCollNetPlugin_v12 = {
    WITH_CONTEXT,
    .properties = tw_net_properties_v12,
};
