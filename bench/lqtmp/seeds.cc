#include "tests/quant/lossless/lossless_data.h"
#include <cstdio>
int main(int, char **v)
{
    struct {
        const char *name;
        tw::Values k;
        tw_type_t t;
        int ti;
        size_t n, c, row;
    } s[] = {{"rows", tw::Values::gradient, TW_TYPE_BF16, 0, 2000, 64, 64},
             {"small", tw::Values::weight, TW_TYPE_BF16, 0, 300, 64, 0},
             {"fp16", tw::Values::gradient, TW_TYPE_FP16, 1, 1100, 64, 64},
             {"fp32", tw::Values::gradient, TW_TYPE_FP32, 2, 700, 100, 100},
             {"sparse", tw::Values::sparse, TW_TYPE_BF16, 0, 2000, 40, 40},
             {"escapes", tw::Values::outliers, TW_TYPE_BF16, 0, 1000, 64, 0},
             {"plain", tw::Values::random, TW_TYPE_BF16, 0, 40, 64, 0},
             {"zero", tw::Values::zero, TW_TYPE_FP32, 2, 2000, 64, 64},
             {"mostly_zero", tw::Values::mostly_zero, TW_TYPE_BF16, 0, 1500, 64, 64}};
    tw_quant_lossless_t *c;
    tw_quant_lossless_create("ref", &c);
    for (auto &x : s) {
        auto val = tw::make_values(x.k, x.t, x.n, x.c);
        std::vector<uint8_t> m(tw_quant_lossless_bound_bytes(x.t, x.n));
        size_t b;
        tw_quant_lossless_segment_t g = {val.data(), nullptr, x.n, x.row, 0};
        tw_quant_lossless_encode(c, x.t, &g, 1, m.data(), m.size(), &b);
        std::string p = std::string(v[1]) + "/" + x.name;
        FILE *f = fopen(p.c_str(), "wb");
        fputc(x.n & 255, f);
        fputc(x.n >> 8, f);
        fputc(x.ti | 4, f);
        fwrite(m.data(), 1, b, f);
        fclose(f);
        printf("%s form %d %zu\n", x.name, m[3], b);
    }
}
