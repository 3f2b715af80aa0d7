#include "transport/rendezvous/node_id.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/line.h"

/** Hash the first line of a file. A file that cannot be read counts as empty. */
static uint64_t hash_file(const char *path, uint64_t seed)
{
    char text[128];
    (void)tw_line_read(path, "", text, sizeof(text));
    return XXH64(text, strlen(text), seed);
}

static uint64_t hash_link(const char *path, uint64_t seed)
{
    char text[128];
    const ssize_t bytes = readlink(path, text, sizeof(text));
    return XXH64(text, bytes > 0 ? (size_t)bytes : 0, seed);
}

uint64_t tw_node_id(const char *name)
{
    char host[256] = "";
    if (name[0]) {
        return XXH64(name, strlen(name), 1);
    }
    (void)gethostname(host, sizeof(host) - 1);
    uint64_t id = XXH64(host, strlen(host), 0);
    id = hash_file("/proc/sys/kernel/random/boot_id", id);
    return hash_link("/proc/self/ns/net", id);
}

uint64_t tw_shm_id(uint64_t node_id)
{
    struct stat shm = {0};
    uint64_t id = hash_link("/proc/self/ns/ipc", node_id);
    id = hash_link("/proc/self/ns/pid", id);
    if (stat("/dev/shm", &shm)) {
        return id;
    }
    const uint64_t file[2] = {(uint64_t)shm.st_dev, (uint64_t)shm.st_ino};
    return XXH64(file, sizeof(file), id);
}
