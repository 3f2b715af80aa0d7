/* What all kinds of models share. */
#include "trainer/model/ops.h"

#include <stdlib.h>

void tw_model_cleanup(tw_model_t *model)
{
    for (size_t t = 0; t < model->n_tensors; t++) {
        free((char *)(uintptr_t)model->tensors[t].name);
    }
    free(model->tensors);
    free(model->units);
}
