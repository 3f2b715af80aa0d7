/* Safetensors files from outside: whatever the bytes, a file is refused or all it offers lies inside it. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "safetensors/safetensors.h"

namespace
{

void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "fuzz_safetensors: not so: %s\n", what);
        abort();
    }
}

void ignore_log(void *, tw_log_level_t, const char *, int, const char *)
{
}

void check_tensor(const tw_safetensors_tensor_t *tensor, const uint8_t *bytes, size_t n_bytes)
{
    const uint8_t *data = static_cast<const uint8_t *>(tensor->data);
    check(data >= bytes && tensor->bytes <= n_bytes && data <= bytes + (n_bytes - tensor->bytes),
          "data in the file");
    size_t product = 1;
    for (int d = 0; d < tensor->n_dims; d++) {
        product *= tensor->dims[d];
    }
    check(product == tensor->n_elems, "the shape's product is the count");
    size_t elem_bytes = tw_type_bytes(tensor->type);
    check(tensor->type == TW_TYPE_BYTE || tensor->n_elems * elem_bytes == tensor->bytes,
          "bytes of the elements");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tw_log_set_sink(ignore_log, nullptr);
    tw_safetensors_t *file = nullptr;
    if (tw_safetensors_parse(data, size, "fuzz", &file) != TW_OK) {
        check(file == nullptr, "nothing is published on failure");
        return 0;
    }
    unsigned sum = 0;
    for (size_t i = 0; i < tw_safetensors_count(file); i++) {
        const tw_safetensors_tensor_t *tensor = tw_safetensors_get(file, i);
        check_tensor(tensor, data, size);
        check(tw_safetensors_find(file, tensor->name) == tensor, "a tensor is found by its name");
        for (size_t b = 0; b < tensor->bytes; b++) {
            sum += static_cast<const uint8_t *>(tensor->data)[b];
        }
    }
    tw_safetensors_close(file);
    return sum == 0xffffffff ? 1 : 0;
}
