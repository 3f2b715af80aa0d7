/* The kernels of one instruction set. This file is compiled once for each set, with TW_KERNELS as its table's
 * name. All sets give the same bits: sums have 16 lanes on every machine, and the compiler must not contract
 * operations to fused multiply-adds. */
#include "trainer/model/kernels.h"

#include <math.h>
#include <string.h>

#include "trainer/model/exp.h"

/* A name for tools that compile this file outside the build. */
#ifndef TW_KERNELS
#define TW_KERNELS kernels_alone
#endif

/* ---- sums in a fixed order ----------------------------------------------------------------------------- */

enum { LANES = 16 };

/* Floats that a vector register holds. */
#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX2__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
enum { VECTORS = LANES / WIDTH };

typedef float vector_t __attribute__((vector_size(WIDTH * sizeof(float))));
typedef float loose_t __attribute__((vector_size(WIDTH * sizeof(float)), aligned(4), may_alias));
typedef int32_t bits_t __attribute__((vector_size(WIDTH * sizeof(int32_t))));
typedef struct lanes {
    vector_t vectors[VECTORS];
} lanes_t;

#define INLINE static inline __attribute__((always_inline))
/* Loop over the registers that make up 16 lanes. Compilers unroll it. */
#define EACH(p) for (size_t p = 0; p < VECTORS; p++)

/** Load x[i] .. x[i + 15]; elements from n on are 0. */
INLINE void load(const float *x, size_t i, size_t n, lanes_t *to)
{
    float rest[LANES] = {0};
    if (i + LANES > n) {
        memcpy(rest, x + i, (n - i) * sizeof(*x));
        x = rest;
        i = 0;
    }
    EACH(p)
    {
        to->vectors[p] = *(const loose_t *)(x + i + p * WIDTH);
    }
}

INLINE float fold(const lanes_t *lanes)
{
    float all[LANES];
    memcpy(all, lanes, sizeof(all));
    for (size_t width = LANES / 2; width > 0; width /= 2) {
        for (size_t i = 0; i < width; i++) {
            all[i] += all[i + width];
        }
    }
    return all[0];
}

static float sum(const float *x, size_t n)
{
    lanes_t total = {{{0}}}, a;
    for (size_t i = 0; i < n; i += LANES) {
        load(x, i, n, &a);
        EACH(p)
        {
            total.vectors[p] += a.vectors[p];
        }
    }
    return fold(&total);
}

static float dot(const float *x, const float *y, size_t n)
{
    lanes_t total = {{{0}}}, a, b;
    for (size_t i = 0; i < n; i += LANES) {
        load(x, i, n, &a);
        load(y, i, n, &b);
        EACH(p)
        {
            total.vectors[p] += a.vectors[p] * b.vectors[p];
        }
    }
    return fold(&total);
}

/* ---- a register at a time ------------------------------------------------------------------------------ */

/** Return x[i] .. x[i + WIDTH - 1]; elements from n on are 0. */
INLINE vector_t get(const float *x, size_t i, size_t n)
{
    float rest[WIDTH] = {0};
    if (i + WIDTH <= n) {
        return *(const loose_t *)(x + i);
    }
    memcpy(rest, x + i, (n - i) * sizeof(*x));
    return *(const loose_t *)rest;
}

INLINE void put(vector_t value, float *y, size_t i, size_t n)
{
    if (i + WIDTH <= n) {
        *(loose_t *)(y + i) = value;
    } else {
        memcpy(y + i, &value, (n - i) * sizeof(*y));
    }
}

INLINE vector_t choose(bits_t mask, vector_t yes, vector_t no)
{
    return (vector_t)((mask & (bits_t)yes) | (~mask & (bits_t)no));
}

/** Return tw_exp of each lane, with the bits of exp.h. */
INLINE vector_t exponential(vector_t x)
{
    const vector_t zero = {0}, least = zero - 87.0f, most = zero + 88.0f;
    x = choose(x < least, least, x);
    x = choose(x > most, most, x);
    vector_t shifted = x * TW_EXP_PER_LN2 + TW_EXP_SHIFT;
    vector_t n = shifted - TW_EXP_SHIFT;
    vector_t r = (x - n * TW_EXP_LN2_HIGH) - n * TW_EXP_LN2_LOW;
    vector_t p = zero + TW_EXP_7;
    p = p * r + TW_EXP_6;
    p = p * r + TW_EXP_5;
    p = p * r + TW_EXP_4;
    p = p * r + TW_EXP_3;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (vector_t)(((bits_t)shifted << 23) + 0x3f800000);
}

/* ---- layer norm ---------------------------------------------------------------------------------------- */

static float row_variance(const float *x, size_t c, float mean)
{
    lanes_t total = {{{0}}}, a;
    size_t whole = c / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        load(x, i, c, &a);
        EACH(p)
        {
            total.vectors[p] += (a.vectors[p] - mean) * (a.vectors[p] - mean);
        }
    }
    float rest = 0.0f;
    for (size_t i = whole; i < c; i++) {
        rest += (x[i] - mean) * (x[i] - mean);
    }
    return (fold(&total) + rest) / (float)c;
}

static void normalise_row(const tw_model_norm_t *norm, const float *x, float mean, float rstd,
                          float *restrict y)
{
    const float *gamma = norm->gamma, *beta = norm->beta;
    for (size_t i = 0; i < norm->c; i++) {
        y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
    }
}

static void layernorm_forward(const tw_model_norm_t *norm, float *y)
{
    const size_t c = norm->c;
    for (size_t row = 0; row < norm->n; row++) {
        const float *x = norm->x + row * c;
        float mean = sum(x, c) / (float)c, rstd;
        rstd = 1.0f / sqrtf(row_variance(x, c, mean) + (float)norm->epsilon);
        norm->stats.mean[row] = mean;
        norm->stats.rstd[row] = rstd;
        normalise_row(norm, x, mean, rstd, y + row * c);
    }
}

static void layernorm_apply(const tw_model_norm_t *norm, float *y)
{
    for (size_t row = 0; row < norm->n; row++) {
        size_t at = row * norm->c;
        normalise_row(norm, norm->x + at, norm->stats.mean[row], norm->stats.rstd[row], y + at);
    }
}

/* Two means over a row that a norm's gradient needs: of g = dy * gamma, and of g * (x - mean) * rstd. */
typedef struct row_means {
    float g, g_x;
} row_means_t;

static row_means_t backward_means(const float *dy, const float *x, const float *gamma, size_t c, float mean,
                                  float rstd)
{
    lanes_t sum_g = {{{0}}}, sum_g_x = {{{0}}}, a, b, d;
    for (size_t i = 0; i < c; i += LANES) {
        load(dy, i, c, &d);
        load(gamma, i, c, &a);
        load(x, i, c, &b);
        EACH(p)
        {
            vector_t g = d.vectors[p] * a.vectors[p]; /* 0 beyond the end */
            sum_g.vectors[p] += g;
            sum_g_x.vectors[p] += g * ((b.vectors[p] - mean) * rstd);
        }
    }
    return (row_means_t){fold(&sum_g) / (float)c, fold(&sum_g_x) / (float)c};
}

/** Compute dx and, if has_vectors, add to the gradients of gamma and beta. Callers pass has_vectors as a
 *  constant, so that the inlined loops have no test. */
INLINE void layernorm_gradients(const tw_model_norm_t *norm, const float *dy_rows,
                                const tw_model_norm_gradients_t *to, int has_vectors)
{
    const size_t c = norm->c;
    const float *gamma = norm->gamma;
    float *restrict dgamma = to->dgamma, *restrict dbeta = to->dbeta;
    for (size_t row = 0; row < norm->n; row++) {
        const float *dy = dy_rows + row * c, *x = norm->x + row * c;
        float *dx = to->dx + row * c, mean = norm->stats.mean[row], rstd = norm->stats.rstd[row];
        row_means_t means = backward_means(dy, x, gamma, c, mean, rstd);
        int accumulate = to->accumulate;
        /* dy may be dx: each element is read before it is written */
#pragma omp simd
        for (size_t i = 0; i < c; i++) {
            float normed = (x[i] - mean) * rstd, d = dy[i];
            float gradient = (d * gamma[i] - means.g - normed * means.g_x) * rstd;
            if (has_vectors) {
                dgamma[i] += d * normed;
                dbeta[i] += d;
            }
            dx[i] = accumulate ? dx[i] + gradient : gradient;
        }
    }
}

static void layernorm_row_vectors(const float *dy, const float *x, float mean, float rstd,
                                  const tw_model_norm_gradients_t *to, size_t n)
{
    float *restrict dgamma = to->dgamma, *restrict dbeta = to->dbeta;
    for (size_t i = 0; i < n; i++) {
        dgamma[i] += dy[i] * ((x[i] - mean) * rstd);
        dbeta[i] += dy[i];
    }
}

/* ---- root-mean-square norm ----------------------------------------------------------------------------- */

static float rmsnorm_row(const float *x, const float *gamma, size_t c, double epsilon, float *y)
{
    float rstd = 1.0f / sqrtf(dot(x, x, c) / (float)c + (float)epsilon);
#pragma omp simd
    for (size_t i = 0; i < c; i++) {
        y[i] = x[i] * rstd * gamma[i];
    }
    return rstd;
}

/** Return the mean of dy * gamma * x * rstd over a row. */
static float rmsnorm_mean(const float *dy, const float *x, const float *gamma, size_t c, float rstd)
{
    lanes_t total = {{{0}}}, a, b, g;
    for (size_t i = 0; i < c; i += LANES) {
        load(dy, i, c, &g);
        load(gamma, i, c, &a);
        load(x, i, c, &b);
        EACH(p)
        {
            total.vectors[p] += g.vectors[p] * a.vectors[p] * (b.vectors[p] * rstd);
        }
    }
    return fold(&total) / (float)c;
}

static void rmsnorm_row_vector(const float *dy, const float *x, float rstd, size_t n, float *restrict dgamma)
{
    for (size_t i = 0; i < n; i++) {
        dgamma[i] += dy[i] * (x[i] * rstd);
    }
}

static void rmsnorm_forward(const tw_model_norm_t *norm, float *y)
{
    for (size_t row = 0; row < norm->n; row++) {
        size_t at = row * norm->c;
        norm->stats.rstd[row] = rmsnorm_row(norm->x + at, norm->gamma, norm->c, norm->epsilon, y + at);
    }
}

static void rmsnorm_apply(const tw_model_norm_t *norm, float *y)
{
    const size_t c = norm->c;
    for (size_t row = 0; row < norm->n; row++) {
        const float *x = norm->x + row * c, *gamma = norm->gamma;
        float rstd = norm->stats.rstd[row], *y_row = y + row * c;
#pragma omp simd
        for (size_t i = 0; i < c; i++) {
            y_row[i] = x[i] * rstd * gamma[i];
        }
    }
}

INLINE void rmsnorm_gradients(const tw_model_norm_t *norm, const float *dy_rows,
                              const tw_model_norm_gradients_t *to, int has_vectors)
{
    const size_t c = norm->c;
    const float *gamma = norm->gamma;
    float *restrict dgamma = to->dgamma;
    for (size_t row = 0; row < norm->n; row++) {
        const float *dy = dy_rows + row * c, *x = norm->x + row * c;
        float *dx = to->dx + row * c, rstd = norm->stats.rstd[row];
        float mean = rmsnorm_mean(dy, x, gamma, c, rstd);
        int accumulate = to->accumulate;
#pragma omp simd
        for (size_t i = 0; i < c; i++) {
            float normed = x[i] * rstd, d = dy[i];
            float gradient = (d * gamma[i] - normed * mean) * rstd;
            if (has_vectors) {
                dgamma[i] += d * normed;
            }
            dx[i] = accumulate ? dx[i] + gradient : gradient;
        }
    }
}

/* ---- either norm --------------------------------------------------------------------------------------- */

static void norm_forward(const tw_model_norm_t *norm, float *y)
{
    (norm->beta ? layernorm_forward : rmsnorm_forward)(norm, y);
}

static void norm_apply(const tw_model_norm_t *norm, float *y)
{
    (norm->beta ? layernorm_apply : rmsnorm_apply)(norm, y);
}

static void norm_backward(const tw_model_norm_t *norm, const float *dy, const tw_model_norm_gradients_t *to)
{
    if (norm->beta) {
        layernorm_gradients(norm, dy, to, 1);
    } else {
        rmsnorm_gradients(norm, dy, to, 1);
    }
}

static void norm_backward_input(const tw_model_norm_t *norm, const float *dy,
                                const tw_model_norm_gradients_t *to)
{
    if (norm->beta) {
        layernorm_gradients(norm, dy, to, 0);
    } else {
        rmsnorm_gradients(norm, dy, to, 0);
    }
}

static void norm_backward_vectors(const tw_model_norm_t *norm, const float *dy, size_t first, size_t n,
                                  const tw_model_norm_gradients_t *to)
{
    const tw_model_norm_gradients_t part = {.dgamma = to->dgamma + first,
                                            .dbeta = norm->beta ? to->dbeta + first : NULL};
    for (size_t row = 0; row < norm->n; row++) {
        size_t at = row * norm->c + first;
        float rstd = norm->stats.rstd[row];
        if (norm->beta) {
            layernorm_row_vectors(dy + at, norm->x + at, norm->stats.mean[row], rstd, &part, n);
        } else {
            rmsnorm_row_vector(dy + at, norm->x + at, rstd, n, part.dgamma);
        }
    }
}

/* ---- GELU, with one exponential: 0.5 (1 + tanh u) = 1 / (1 + e^-2u) ------------------------------------ */

#define TWO_ROOT_2_OVER_PI 1.5957691216f /* 2 sqrt(2 / pi) */
#define CUBE 0.044715f

/** Return 1 + e^-2u, where u = sqrt(2 / pi) (x + CUBE x^3). GELU(x) is x divided by that. */
INLINE vector_t gelu_divisor(vector_t x)
{
    vector_t two_u = TWO_ROOT_2_OVER_PI * (x + CUBE * x * x * x);
    return 1.0f + exponential(-two_u);
}

static void gelu_forward(const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += WIDTH) {
        vector_t v = get(x, i, n);
        put(v / gelu_divisor(v), y, i, n);
    }
}

/** Multiply d by dy/dx = s + x s (1 - s) d(2u)/dx, as y = x s(2u), s is the sigmoid, and s' = s (1 - s). */
static void gelu_backward(const float *x, size_t n, float *d)
{
    for (size_t i = 0; i < n; i += WIDTH) {
        vector_t v = get(x, i, n), s = 1.0f / gelu_divisor(v);
        vector_t slope = TWO_ROOT_2_OVER_PI * (1.0f + 3.0f * CUBE * v * v);
        put(get(d, i, n) * (s + v * s * (1.0f - s) * slope), d, i, n);
    }
}

/* ---- SwiGLU -------------------------------------------------------------------------------------------- */

static void swiglu_forward(const float *gate, const float *up, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += WIDTH) {
        vector_t g = get(gate, i, n);
        put(g / (1.0f + exponential(-g)) * get(up, i, n), y, i, n);
    }
}

/** Compute the gradients. silu(x) = x s(x), where s is the sigmoid, so dsilu/dx = s (1 + x (1 - s)). */
static void swiglu_backward(const float *gate, const float *up, size_t n, float *dy, float *d_gate)
{
    for (size_t i = 0; i < n; i += WIDTH) {
        vector_t g = get(gate, i, n), d = get(dy, i, n), s = 1.0f / (1.0f + exponential(-g));
        put(d * get(up, i, n) * s * (1.0f + g * (1.0f - s)), d_gate, i, n);
        put(d * g * s, dy, i, n);
    }
}

/* ---- softmax and cross-entropy ------------------------------------------------------------------------- */

static float row_max(const float *row, size_t n)
{
    float max = row[0];
#pragma omp simd reduction(max : max)
    for (size_t i = 1; i < n; i++) {
        max = row[i] > max ? row[i] : max;
    }
    return max;
}

/** Replace each element of row by exp(element - max), and return their sum. */
static float exponentials(float *row, size_t n, float max)
{
    for (size_t i = 0; i < n; i += WIDTH) {
        put(exponential(get(row, i, n) - max), row, i, n);
    }
    return sum(row, n);
}

static void multiply_row(float *row, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++) {
        row[i] *= factor;
    }
}

static void softmax_row(float *row, size_t n)
{
    multiply_row(row, n, 1.0f / exponentials(row, n, row_max(row, n)));
}

static void softmax_row_backward(const float *restrict p, size_t n, float factor, float *restrict dp)
{
    float sum_p_dp = dot(p, dp, n);
    for (size_t i = 0; i < n; i++) {
        dp[i] = p[i] * (dp[i] - sum_p_dp) * factor;
    }
}

static double cross_entropy_row(float *logits, size_t v, size_t target, float scale)
{
    float max = row_max(logits, v);
    double of_target = (double)logits[target] - (double)max;
    float total = exponentials(logits, v, max);
    multiply_row(logits, v, scale / total);
    logits[target] -= scale;
    return log((double)total) - of_target;
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

static void kernel_bias_forward(const float *restrict b, size_t n, size_t c, size_t stride, int accumulate,
                                float *restrict y)
{
    for (size_t row = 0; row < n; row++) {
        for (size_t i = 0; i < c; i++) {
            y[row * stride + i] = accumulate ? y[row * stride + i] + b[i] : b[i];
        }
    }
}

static void kernel_bias_backward(const float *restrict dy, size_t n, size_t c, size_t stride,
                                 float *restrict db)
{
    for (size_t row = 0; row < n; row++) {
        for (size_t i = 0; i < c; i++) {
            db[i] += dy[row * stride + i];
        }
    }
}

/** Round to the nearest bf16, ties to even. The addition may carry into the exponent, which is right for
 *  numbers. A NaN, which the carry could change to a number, is handled separately. */
INLINE uint16_t narrowed(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

static void kernel_narrow(const float *restrict x, size_t n, uint16_t *restrict y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = narrowed(x[i]);
    }
}

/** Round in place, through a buffer. Results take half the space, so writing never overtakes reading. */
static void narrow_in_place(float *x, size_t n)
{
    uint16_t piece[512];
    for (size_t i = 0; i < n; i += 512) {
        size_t m = n - i < 512 ? n - i : 512;
        kernel_narrow(x + i, m, piece);
        memcpy((char *)x + i * sizeof(*piece), piece, m * sizeof(*piece));
    }
}

/** Rotate a head by its angles (sign 1), or back (sign -1). */
INLINE void turn(float *restrict x, size_t width, const float *restrict cosines, const float *restrict sines,
                 float sign)
{
    size_t pairs = width / 2;
    float *restrict low = x, *restrict high = x + pairs;
#pragma omp simd
    for (size_t i = 0; i < pairs; i++) {
        float a = low[i], b = high[i], sine = sign * sines[i];
        low[i] = a * cosines[i] - b * sine;
        high[i] = b * cosines[i] + a * sine;
    }
}

static void rope_turn(float *x, size_t width, const float *cosines, const float *sines)
{
    turn(x, width, cosines, sines, 1.0f);
}

static void rope_turn_backward(float *d, size_t width, const float *cosines, const float *sines)
{
    turn(d, width, cosines, sines, -1.0f);
}

const tw_kernel_set_t TW_KERNELS = {
    .norm_forward = norm_forward,
    .norm_apply = norm_apply,
    .norm_backward = norm_backward,
    .norm_backward_input = norm_backward_input,
    .norm_backward_vectors = norm_backward_vectors,
    .rmsnorm_row = rmsnorm_row,
    .rmsnorm_row_vector = rmsnorm_row_vector,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .softmax_row = softmax_row,
    .softmax_row_backward = softmax_row_backward,
    .cross_entropy_row = cross_entropy_row,
    .bias_forward = kernel_bias_forward,
    .bias_backward = kernel_bias_backward,
    .narrow = kernel_narrow,
    .narrow_in_place = narrow_in_place,
    .rope_turn = rope_turn,
    .rope_turn_backward = rope_turn_backward,
};
