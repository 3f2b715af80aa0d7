/* manifest.json from outside: any bytes as the file, and any body under a checksum that is right. What is
 * wrong is refused with an error that names the file; what is accepted can be read from. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <jansson.h>
#include <unistd.h>
#include <xxhash.h>

#include "trainer/checkpoint/manifest.h"

namespace
{

constexpr tw_model_config_t kModel = {256, 4, 1, 2, 8, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};

std::string path;
bool is_named;

void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "fuzz_manifest: not so: %s\n", what);
        abort();
    }
}

void look_for_path(void *, tw_log_level_t, const char *, int, const char *text)
{
    is_named |= strstr(text, path.c_str()) != nullptr;
}

void write(const void *bytes, size_t n)
{
    FILE *file = fopen(path.c_str(), "w");
    check(file && fwrite(bytes, 1, n, file) == n && fclose(file) == 0, "the file is written");
}

void read(const tw_model_t *model)
{
    tw_manifest_t manifest;
    is_named = false;
    if (tw_manifest_read(path.c_str(), model, &manifest) != TW_OK) {
        check(is_named, "an error names the file");
        check(manifest.shards == nullptr && manifest.run.world == 0, "nothing is published on failure");
        return;
    }
    check(manifest.run.world >= 1, "somebody wrote it");
    check(manifest.run.step <= INT64_MAX && manifest.run.batch <= INT64_MAX, "nothing is negative");
    for (int rank = 0; rank < manifest.run.world; rank++) {
        check(manifest.shards[rank].bytes >= 1, "a shard is there");
    }
    tw_manifest_cleanup(&manifest);
}

/* The body of the input under its own checksum; false: it has none. */
bool write_signed(const uint8_t *data, size_t size)
{
    json_t *json = json_loadb(reinterpret_cast<const char *>(data), size, 0, nullptr);
    json_t *body = json_object_get(json, "body");
    char *compact = json_is_object(body) ? json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS) : nullptr;
    if (compact) {
        char checksum[17];
        snprintf(checksum, sizeof(checksum), "%016llx",
                 static_cast<unsigned long long>(XXH3_64bits(compact, strlen(compact))));
        std::string text = std::string("{\"body\": ") + compact + ", \"xxh3\": \"" + checksum + "\"}";
        write(text.data(), text.size());
    }
    free(compact);
    json_decref(json);
    return compact != nullptr;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tw_model_t *model;
    if (!model) {
        const char *folder = getenv("TEST_TMPDIR");
        path = std::string(folder ? folder : "/tmp") + "/manifest." + std::to_string(getpid());
        check(tw_model_create(&kModel, &model) == TW_OK, "there is a model");
        tw_log_set_sink(look_for_path, nullptr);
    }
    write(data, size);
    read(model);
    if (write_signed(data, size)) {
        read(model);
    }
    unlink(path.c_str());
    return 0;
}
