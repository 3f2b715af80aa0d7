/* One rank of the trainer whose steps others time: a step for each line on stdin, a line of JSON after it. The words of
 * the command line are keys of the configuration. */
#include <stdio.h>
#include <stdlib.h>

#include "core/core.h"
#include "trainer/model/products.h"
#include "trainer/trainer.h"

#define PEAK_SIZE 1024
#define PEAK_TRIES 10

/* Operations a second of the best of some products of square matrices: none of the models' is faster. 0: no memory. */
static double peak(tw_products_t *products, tw_type_t type)
{
    size_t n = (size_t)PEAK_SIZE * PEAK_SIZE;
    float *memory = tw_buffer_alloc_zero(3 * n * sizeof(float)), best = 0.0f;
    tw_product_t product = {.a = {.at = memory, .stride = PEAK_SIZE, .type = type},
                            .b = {.at = memory + n, .stride = PEAK_SIZE, .type = type},
                            .c = memory + 2 * n,
                            .c_stride = PEAK_SIZE,
                            .rows = PEAK_SIZE,
                            .cols = PEAK_SIZE,
                            .inner = PEAK_SIZE,
                            .alpha = 1.0f};
    for (int i = 0; i < PEAK_TRIES && memory; i++) {
        double begin = tw_time_sec();
        tw_product_run(products, &product);
        double speed = 2.0 * PEAK_SIZE * (double)n / (tw_time_sec() - begin);
        best = speed > best ? (float)speed : best;
    }
    tw_buffer_free(memory);
    return best;
}

/* What products this processor has, and how fast. */
static tw_status_t say_products(void)
{
    tw_products_t *products = NULL;
    TW_TRY(tw_products_create(&products));
    double fp32 = peak(products, TW_TYPE_FP32);
    double bf16 = tw_products_have_bf16() ? peak(products, TW_TYPE_BF16) : 0.0;
    printf("{\"products\": \"%s\", \"peak_fp32\": %.0f, \"peak_bf16\": %.0f}\n", tw_products_name(), fp32,
           bf16);
    fflush(stdout);
    tw_products_destroy(products);
    return TW_OK;
}

/* Waits for the line that asks for a step; ends the program when there is none. */
static void wait_for_line(void)
{
    char line[64];
    if (!fgets(line, sizeof(line), stdin)) {
        exit(0);
    }
}

static void on_step(void *ctx, const tw_trainer_step_t *step)
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
                                                       .on_step = on_step},
                                &result);
    }
    return status == TW_OK ? 0 : 1;
}
