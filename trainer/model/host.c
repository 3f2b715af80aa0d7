/* Makes and destroys models of any kind on this processor. */
#include "trainer/model/host.h"

#include <stdlib.h>

tw_status_t tw_model_host_create(const tw_model_config_t *config, const tw_model_ops_t *ops, size_t bytes,
                                 tw_model_t **out)
{
    tw_model_t *model = calloc(1, bytes);
    TW_FAIL_IF(!model, TW_ERR_NO_MEMORY, "model: out of memory");
    model->ops = ops;
    model->config = *config;
    tw_status_t status = tw_model_compute_init(model);
    status = status == TW_OK ? tw_model_tensors_init(model) : status;
    if (status != TW_OK) {
        tw_model_host_destroy(model);
        return status;
    }
    *out = model;
    return TW_OK;
}

void tw_model_host_destroy(tw_model_t *model)
{
    tw_buffer_free(model->memory);
    tw_model_cleanup(model);
    free(model);
}
