/* A model on an imaginary GPU. It can only be asked for the memory that it would need. */
#include "trainer/device/device.h"

static tw_status_t use(tw_device_t *device)
{
    (void)device;
    return TW_OK;
}

static tw_status_t stream_create(tw_device_t *device, tw_stream_t *out)
{
    (void)device;
    *out = NULL;
    return TW_OK;
}

static tw_status_t event_create(tw_device_t *device, tw_device_event_t *out)
{
    (void)device;
    *out = NULL;
    return TW_OK;
}

static tw_status_t planned_take(tw_device_t *device, size_t bytes, int pinned, void **out)
{
    (void)device;
    (void)bytes;
    (void)pinned;
    *out = NULL;
    return TW_OK;
}

static tw_status_t delta_create(tw_device_t *device, tw_quant_delta_stream_t **out)
{
    (void)device;
    *out = NULL;
    return TW_OK;
}

/** The device has only the operations that creating a model calls. Its streams and events are NULL, so
 *  destroying the model does not wait for them. */
tw_status_t tw_device_model_create_planned(const tw_model_config_t *config, tw_model_t **out)
{
    static tw_device_products_t products = {.memory_bytes = TW_DEVICE_PRODUCTS_BYTES};
    static tw_device_t device = {.products = &products,
                                 .use = use,
                                 .alloc = planned_take,
                                 .stream_create = stream_create,
                                 .event_create = event_create,
                                 .delta_create = delta_create};
    return tw_device_model_create(config, &device, out);
}
