#include "quant/quant.h"
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static double sec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
int main(int argc, char **argv)
{
    const char *pat = argv[1];
    int tile = argc > 2 ? atoi(argv[2]) : 1;
    size_t chunk = argc > 3 ? atol(argv[3]) : 0;
    int reps = argc > 4 ? atoi(argv[4]) : 15;
    tw_type_t type = argc > 5 ? atoi(argv[5]) : TW_TYPE_BF16;
    size_t eb = tw_type_bytes(type);
    glob_t g;
    glob(pat, 0, 0, &g);
    static tw_quant_lossless_segment_t seg[100000], dseg[100000];
    size_t ns = 0, n = 0;
    for (int t = 0; t < tile; t++)
        for (size_t i = 0; i < g.gl_pathc; i++) {
            FILE *f = fopen(g.gl_pathv[i], "rb");
            fseek(f, 0, SEEK_END);
            size_t b = ftell(f);
            rewind(f);
            unsigned short *p = malloc(b + 64);
            fread(p, 1, b, f);
            fclose(f);
            char *x = strdup(g.gl_pathv[i]);
            x[strlen(x) - 5] = 0;
            size_t cols = atol(strrchr(x, '.') + 1);
            size_t ne = b / 2;
            void *src = p;
            void *dst;
            if (type != TW_TYPE_BF16) {
                float *fl = malloc(4 * ne);
                tw_convert_to_fp32(TW_TYPE_BF16, p, fl, ne);
                for (size_t k = 0; k < ne; k++) {
                    fl[k] *= 1.0f + 1e-3f * (rand() % 1000) * 1e-3f;
                }
                if (type == TW_TYPE_FP16) {
                    void *h = malloc(2 * ne);
                    tw_convert_from_fp32(TW_TYPE_FP16, fl, 4.f, h, ne);
                    src = h;
                } else
                    src = fl;
            }
            dst = malloc(ne * eb);
            for (size_t a = 0; a < ne;) {
                size_t c = chunk && ne - a > chunk ? chunk : ne - a;
                seg[ns] = (tw_quant_lossless_segment_t){.src = (char *)src + a * eb,
                                                        .n_elems = c,
                                                        .row_elems = cols > 1 ? cols : 0,
                                                        .first_elem = a};
                dseg[ns] = (tw_quant_lossless_segment_t){.dst = (char *)dst + a * eb, .n_elems = c};
                ns++;
                a += c;
            }
            n += ne;
        }
    const char *names[8];
    size_t nb = tw_quant_lossless_backends(names, 8);
    uint8_t *msg = malloc(tw_quant_lossless_bound_bytes(type, n) + 64 * ns);
    for (size_t b = 0; b < nb; b++) {
        if (getenv("BK") && strcmp(getenv("BK"), names[b]))
            continue;
        tw_quant_lossless_t *c;
        tw_quant_lossless_create(names[b], &c);
        double be = 1e9, bd = 1e9;
        size_t total = 0;
        uint32_t h = 0;
        for (int r = 0; r < reps; r++) {
            total = 0;
            double te = 0, td = 0;
            if (!chunk) {
                double t = sec();
                tw_quant_lossless_encode(c, type, seg, ns, msg, tw_quant_lossless_bound_bytes(type, n),
                                         &total);
                te = sec() - t;
                t = sec();
                if (tw_quant_lossless_decode(c, type, dseg, ns, msg, total) != TW_OK)
                    return 1;
                td = sec() - t;
            } else
                for (size_t s = 0; s < ns; s++) {
                    size_t by;
                    double t = sec();
                    tw_quant_lossless_encode(c, type, seg + s, 1, msg,
                                             tw_quant_lossless_bound_bytes(type, seg[s].n_elems), &by);
                    te += sec() - t;
                    t = sec();
                    if (tw_quant_lossless_decode(c, type, dseg + s, 1, msg, by))
                        return 1;
                    td += sec() - t;
                    total += by;
                }
            if (te < be)
                be = te;
            if (td < bd)
                bd = td;
        }
        for (size_t i = 0; i < total; i++)
            h = h * 31 + msg[i];
        int ok = 1;
        for (size_t s = 0; s < ns; s++)
            ok &= !memcmp(seg[s].src, dseg[s].dst, seg[s].n_elems * eb);
        printf("%-8s n %zu bits %.3f encode %.2f decode %.2f GB/s ok %d hash %08x\n", names[b], n,
               8.0 * total / n, eb * n / be * 1e-9, eb * n / bd * 1e-9, ok, h);
    }
}
