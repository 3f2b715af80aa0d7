/** Checkpoints as older programs have left them. */
#ifndef TW_TESTS_TRAINER_CHECKPOINT_OLDER_H
#define TW_TESTS_TRAINER_CHECKPOINT_OLDER_H

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <gtest/gtest.h>
#include <jansson.h>
#include <xxhash.h>

namespace tw
{

/** Take from a manifest what a program that knew of no runs has not written; its checksum is right. */
inline void make_manifest_older(const std::string &path)
{
    json_t *json = json_load_file(path.c_str(), 0, nullptr), *body = json_object_get(json, "body");
    for (const char *key : {"run", "recent_loss", "facts", "model"}) {
        EXPECT_EQ(0, json_object_del(body, key)) << key;
    }
    char *text = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS), checksum[17];
    snprintf(checksum, sizeof(checksum), "%016llx", (unsigned long long)XXH3_64bits(text, strlen(text)));
    free(text);
    json_object_set_new(json, "xxh3", json_string(checksum));
    EXPECT_EQ(0, json_dump_file(json, path.c_str(), 0));
    json_decref(json);
}

} // namespace tw

#endif
