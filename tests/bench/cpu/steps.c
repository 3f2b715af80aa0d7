/* Runs one rank of the trainer whose steps others time: it takes a step for each line on stdin, and answers
 * with a line of JSON. The arguments are keys of the configuration. */
#include <stdio.h>
#include <stdlib.h>

#include "core/core.h"
#include "trainer/model/model.h"
#include "trainer/trainer.h"

/** Print which matrix products this processor has, and how fast they are. */
static tw_status_t say_products(void)
{
    double fp32 = 0.0, bf16 = 0.0;
    TW_TRY(tw_model_products_speed(TW_TYPE_FP32, &fp32));
    if (tw_model_has_bf16_products()) {
        TW_TRY(tw_model_products_speed(TW_TYPE_BF16, &bf16));
    }
    printf("{\"products\": \"%s\", \"peak_fp32\": %.0f, \"peak_bf16\": %.0f}\n", tw_model_products_name(),
           fp32, bf16);
    fflush(stdout);
    return TW_OK;
}

/** Wait for the line that asks for a step; end the program when there is none. */
static void wait_for_line(void)
{
    char line[64];
    if (!fgets(line, sizeof(line), stdin)) {
        exit(0);
    }
}

static void steps_on_step(void *ctx, const tw_trainer_step_t *step)
{
    (void)ctx;
    printf("{\"wall\": %.9f, \"processor\": %.9f, \"loss\": %.6f}\n", step->step_sec,
           step->compute_processor_sec + step->progress_processor_sec, step->loss);
    fflush(stdout);
    wait_for_line();
}

int main(int argc, char **argv)
{
    tw_status_t status = say_products();
    if (status == TW_OK) {
        wait_for_line();
        tw_trainer_result_t result;
        status = tw_trainer_run(&(tw_trainer_params_t){.sets = (const char *const *)argv + 1,
                                                       .n_sets = (size_t)argc - 1,
                                                       .on_step = steps_on_step},
                                &result);
    }
    return status == TW_OK ? 0 : 1;
}
