/* Measures how fast this processor multiplies matrices. */
#include "trainer/model/model.h"
#include "trainer/model/products.h"

enum { SIZE = 1024, TRIES = 10 };

const char *tw_model_products_name(void)
{
    return tw_products_name();
}

int tw_model_has_bf16_products(void)
{
    return tw_products_have_bf16();
}

/** Return the operations a second of the fastest of TRIES runs. */
static double products_measure(tw_products_t *products, const tw_product_t *product)
{
    double best_sec = 0.0;
    for (int i = 0; i < TRIES; i++) {
        double begin = tw_time_sec();
        tw_product_run(products, product);
        double sec = tw_time_sec() - begin;
        best_sec = i == 0 || sec < best_sec ? sec : best_sec;
    }
    return best_sec > 0.0 ? 2.0 * SIZE * SIZE * SIZE / best_sec : 0.0;
}

tw_status_t tw_model_products_speed(tw_type_t type, double *flops_per_sec)
{
    const size_t n = (size_t)SIZE * SIZE;
    tw_products_t *products = NULL;
    TW_TRY(tw_products_create(&products));
    float *memory = tw_buffer_alloc_zero(3 * n * sizeof(float));
    if (memory) {
        const tw_product_t product = {.a = {.at = memory, .stride = SIZE, .type = type},
                                      .b = {.at = memory + n, .stride = SIZE, .type = type},
                                      .c = memory + 2 * n,
                                      .c_stride = SIZE,
                                      .rows = SIZE,
                                      .cols = SIZE,
                                      .inner = SIZE,
                                      .alpha = 1.0f};
        *flops_per_sec = products_measure(products, &product);
    } else {
        tw_error("model: out of memory for products");
    }
    tw_buffer_free(memory);
    tw_products_destroy(products);
    return memory ? TW_OK : TW_ERR_NO_MEMORY;
}
