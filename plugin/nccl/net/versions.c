/* NCCL's tables, v7 to v12: thin layers over net.h. Versions without contexts use the shared context. */
#include "plugin/nccl/interposer.h"
#include "plugin/nccl/log.h"
#include "plugin/nccl/net/net.h"
#include "plugin/nccl/net/properties.h"

/** Convert a status and its object to NCCL's convention, where "not yet" is success with *out NULL. */
static tw_nccl_result_t result_or_null(tw_status_t status, void **out, void *made)
{
    *out = status == TW_OK ? made : NULL;
    return tw_nccl_result(status);
}

static int traffic_class_of(const tw_nccl_net_config_t *config)
{
    if (config && config->traffic_class > 255) {
        tw_warn("net: trafficClass %d of the communicator's configuration is none: 0 to 255",
                config->traffic_class);
        return TW_NET_NO_CLASS;
    }
    return config ? config->traffic_class : TW_NET_NO_CLASS;
}

/* ---- init ---------------------------------------------------------------------------------------------- */

static tw_status_t net_begin(tw_nccl_logger_t logger, tw_nccl_profiler_t profiler)
{
    tw_nccl_begin(logger);
    TW_TRY(tw_interposer_open());
    return tw_net_begin(profiler, tw_interposer_secret());
}

static tw_nccl_result_t init_v10(tw_nccl_logger_t logger, tw_nccl_profiler_t profiler)
{
    tw_net_context_t *context;
    tw_status_t status = net_begin(logger, profiler);
    return tw_nccl_result(status == TW_OK ? tw_net_context_shared(&context) : status);
}

static tw_nccl_result_t init_v7(tw_nccl_logger_t logger)
{
    return init_v10(logger, NULL);
}

static tw_nccl_result_t init_v11(void **context, uint64_t comm_id, tw_nccl_net_config_t *config,
                                 tw_nccl_logger_t logger, tw_nccl_profiler_t profiler)
{
    tw_net_context_t *made = NULL;
    tw_status_t status = net_begin(logger, profiler);
    (void)comm_id;
    status = status == TW_OK ? tw_net_context_create(traffic_class_of(config), &made) : status;
    return result_or_null(status, context, made);
}

/* ---- connections --------------------------------------------------------------------------------------- */

static tw_nccl_result_t listen_v11(void *context, int dev, void *handle, void **listen_comm)
{
    tw_net_listener_t *made = NULL;
    tw_status_t status = tw_net_listen(context, dev, handle, &made);
    return result_or_null(status, listen_comm, made);
}

static tw_nccl_result_t listen_v7(int dev, void *handle, void **listen_comm)
{
    tw_net_context_t *context;
    tw_status_t status = tw_net_context_shared(&context);
    return status == TW_OK ? listen_v11(context, dev, handle, listen_comm) : tw_nccl_result(status);
}

/** Connect. Leaves *device_handle unchanged, because the GPU drives no connection. */
static tw_nccl_result_t connect_v11(void *context, int dev, void *handle, void **send_comm,
                                    void **device_handle)
{
    tw_net_comm_t *made = NULL;
    tw_status_t status = tw_net_connect(context, dev, handle, TW_NET_NO_CLASS, &made);
    (void)device_handle;
    return result_or_null(status, send_comm, made);
}

static tw_nccl_result_t connect_v10(int dev, tw_nccl_net_config_t *config, void *handle, void **send_comm,
                                    void **device_handle)
{
    tw_net_context_t *context;
    tw_net_comm_t *made = NULL;
    tw_status_t status = tw_net_context_shared(&context);
    (void)device_handle;
    status = status == TW_OK ? tw_net_connect(context, dev, handle, traffic_class_of(config), &made) : status;
    return result_or_null(status, send_comm, made);
}

static tw_nccl_result_t connect_v7(int dev, void *handle, void **send_comm, void **device_handle)
{
    return connect_v10(dev, NULL, handle, send_comm, device_handle);
}

static tw_nccl_result_t accept_any(void *listen_comm, void **recv_comm, void **device_handle)
{
    tw_net_comm_t *made = NULL;
    tw_status_t status = tw_net_accept(listen_comm, &made);
    (void)device_handle;
    return result_or_null(status, recv_comm, made);
}

static tw_nccl_result_t close_comm(void *comm)
{
    tw_net_comm_close(comm);
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t close_listen(void *listen_comm)
{
    tw_net_listener_close(listen_comm);
    return TW_NCCL_SUCCESS;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static tw_nccl_result_t reg_mr(void *comm, void *data, size_t bytes, int type, void **mhandle)
{
    tw_net_region_t *made = NULL;
    if (tw_net_check_memory(type) != TW_NCCL_SUCCESS) {
        return TW_NCCL_INVALID_ARGUMENT;
    }
    tw_status_t status = tw_net_register(comm, data, bytes, &made);
    return result_or_null(status, mhandle, made);
}

static tw_nccl_result_t reg_mr_v7(void *comm, void *data, int bytes, int type, void **mhandle)
{
    return reg_mr(comm, data, bytes > 0 ? (size_t)bytes : 0, type, mhandle);
}

static tw_nccl_result_t dereg_mr(void *comm, void *mhandle)
{
    (void)comm;
    tw_net_deregister(mhandle);
    return TW_NCCL_SUCCESS;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static tw_nccl_result_t isend_v10(void *send_comm, void *data, size_t bytes, int tag, void *mhandle,
                                  void *phandle, void **request)
{
    tw_net_buffer_t buffer = {.data = data, .bytes = bytes, .tag = tag, .phandle = phandle};
    tw_net_request_t *made = NULL;
    tw_status_t status = tw_net_send(send_comm, &buffer, &made);
    (void)mhandle;
    return result_or_null(status, request, made);
}

static tw_nccl_result_t isend_v9(void *send_comm, void *data, size_t bytes, int tag, void *mhandle,
                                 void **request)
{
    return isend_v10(send_comm, data, bytes, tag, mhandle, NULL, request);
}

static tw_nccl_result_t isend_v7(void *send_comm, void *data, int bytes, int tag, void *mhandle,
                                 void **request)
{
    TW_FAIL_IF(bytes < 0, TW_NCCL_INVALID_ARGUMENT, "net: a message of %d bytes", bytes);
    return isend_v9(send_comm, data, (size_t)bytes, tag, mhandle, request);
}

/** Receive. NCCL may pass a hint in *request that it does not need the completion. The hint is ignored. */
static tw_nccl_result_t irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
                                  void **mhandles, void **phandles, void **request)
{
    tw_net_buffer_t buffers[TW_NET_RECVS_MAX] = {{0}};
    tw_net_request_t *made = NULL;
    (void)mhandles;
    for (int i = 0; i < n && i < TW_NET_RECVS_MAX; i++) {
        buffers[i] = (tw_net_buffer_t){
            .data = data[i], .bytes = sizes[i], .tag = tags[i], .phandle = phandles ? phandles[i] : NULL};
    }
    tw_status_t status = tw_net_recv(recv_comm, buffers, n, &made);
    return result_or_null(status, request, made);
}

static tw_nccl_result_t irecv_v9(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
                                 void **mhandles, void **request)
{
    return irecv_v10(recv_comm, n, data, sizes, tags, mhandles, NULL, request);
}

static tw_nccl_result_t irecv_v7(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                                 void **request)
{
    size_t wide[TW_NET_RECVS_MAX] = {0};
    for (int i = 0; i < n && i < TW_NET_RECVS_MAX; i++) {
        TW_FAIL_IF(sizes[i] < 0, TW_NCCL_INVALID_ARGUMENT, "net: a message of %d bytes", sizes[i]);
        wide[i] = (size_t)sizes[i];
    }
    return irecv_v9(recv_comm, n, data, wide, tags, mhandles, request);
}

/** Nothing needs a flush: received data are in host memory. */
static tw_nccl_result_t iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles,
                               void **request)
{
    (void)recv_comm, (void)n, (void)data, (void)sizes, (void)mhandles;
    *request = NULL;
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t test(void *request, int *done, int *sizes)
{
    tw_status_t status = tw_net_test(request, sizes);
    *done = status == TW_OK;
    return tw_nccl_result(status);
}

/* ---- tables -------------------------------------------------------------------------------------------- */

extern const tw_nccl_net_v7_t ncclNetPlugin_v7;
extern const tw_nccl_net_v8_t ncclNetPlugin_v8;
extern const tw_nccl_net_v9_t ncclNetPlugin_v9;
extern const tw_nccl_net_v10_t ncclNetPlugin_v10;
extern const tw_nccl_net_v11_t ncclNetPlugin_v11;
extern const tw_nccl_net_v12_t ncclNetPlugin_v12;

#define IN_ALL                                                                                  \
    .name = TW_NET_PLUGIN_NAME, .devices = tw_net_properties_devices, .accept = accept_any,     \
    .reg_mr_dma_buf = tw_net_reg_dma_buf, .dereg_mr = dereg_mr, .iflush = iflush, .test = test, \
    .close_send = close_comm, .close_recv = close_comm, .close_listen = close_listen

#define UP_TO_V9 IN_ALL, .init = init_v7, .listen = listen_v7, .connect = connect_v7

const tw_nccl_net_v7_t ncclNetPlugin_v7 = {
    UP_TO_V9, .properties = tw_net_properties_v7, .reg_mr = reg_mr_v7, .isend = isend_v7, .irecv = irecv_v7,
};

const tw_nccl_net_v8_t ncclNetPlugin_v8 = {
    UP_TO_V9, .properties = tw_net_properties_v8, .reg_mr = reg_mr, .isend = isend_v7, .irecv = irecv_v7,
};

const tw_nccl_net_v9_t ncclNetPlugin_v9 = {
    UP_TO_V9, .properties = tw_net_properties_v9, .reg_mr = reg_mr, .isend = isend_v9, .irecv = irecv_v9,
};

const tw_nccl_net_v10_t ncclNetPlugin_v10 = {
    IN_ALL,
    .init = init_v10,
    .properties = tw_net_properties_v9,
    .listen = listen_v7,
    .connect = connect_v10,
    .reg_mr = reg_mr,
    .isend = isend_v10,
    .irecv = irecv_v10,
};

#define WITH_CONTEXT                                                                          \
    IN_ALL, .init = init_v11, .listen = listen_v11, .connect = connect_v11, .reg_mr = reg_mr, \
            .isend = isend_v10, .irecv = irecv_v10, .finalize = tw_net_finalize

const tw_nccl_net_v11_t ncclNetPlugin_v11 = {
    WITH_CONTEXT,
    .properties = tw_net_properties_v11,
};

const tw_nccl_net_v12_t ncclNetPlugin_v12 = {
    WITH_CONTEXT,
    .properties = tw_net_properties_v12,
};
