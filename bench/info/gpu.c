/* Reports GPUs and NCCL. Opens their libraries at run time, so that the program also runs without them. */
#include "bench/info/info.h"

#include <dlfcn.h>
#include <string.h>

/* ---- CUDA's driver API, as far as it is used here; its ABI is stable ----------------------------------- */

enum { ATTRIBUTE_CAPABILITY_MAJOR = 75, ATTRIBUTE_CAPABILITY_MINOR = 76 };

typedef struct driver {
    void *library;
    int (*init)(unsigned flags);
    int (*driver_get_version)(int *version);
    int (*device_get_count)(int *count);
    int (*device_get)(int *device, int ordinal);
    int (*device_get_name)(char *name, int bytes, int device);
    int (*device_total_mem)(size_t *bytes, int device);
    int (*device_get_attribute)(int *value, int attribute, int device);
} driver_t;

/** Store a function's address in *function, a pointer to a function. Return 0 if the library lacks it. */
static int info_find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    /* ISO C cannot convert dlsym's object pointer to a function pointer; POSIX gives both the same form. */
    memcpy(function, &symbol, sizeof(symbol));
    return symbol != NULL;
}

/** Open the driver's library and find its functions. Return 0 and write the reason if that fails. */
static int driver_open(driver_t *driver, char *reason, size_t reason_bytes)
{
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver->library) {
        snprintf(reason, reason_bytes, "%s", dlerror());
        return 0;
    }
    if (info_find(driver->library, "cuInit", &driver->init) &&
        info_find(driver->library, "cuDriverGetVersion", &driver->driver_get_version) &&
        info_find(driver->library, "cuDeviceGetCount", &driver->device_get_count) &&
        info_find(driver->library, "cuDeviceGet", &driver->device_get) &&
        info_find(driver->library, "cuDeviceGetName", &driver->device_get_name) &&
        info_find(driver->library, "cuDeviceTotalMem_v2", &driver->device_total_mem) &&
        info_find(driver->library, "cuDeviceGetAttribute", &driver->device_get_attribute)) {
        return 1;
    }
    snprintf(reason, reason_bytes, "libcuda.so.1 lacks a function of the driver API");
    return 0;
}

/** Return the number of GPUs. Return 0 and write the reason if the driver fails. */
static int count_gpus(const driver_t *driver, char *reason, size_t reason_bytes)
{
    int n_gpus = 0;
    int error = driver->init(0);
    if (error == 0) {
        error = driver->device_get_count(&n_gpus);
    }
    if (error == 0) {
        return n_gpus;
    }
    snprintf(reason, reason_bytes, "the driver answers with error %d", error);
    return 0;
}

static void driver_version(info_report_t *report, const driver_t *driver)
{
    char text[32];
    int version;
    if (driver->driver_get_version(&version) != 0) {
        return;
    }
    snprintf(text, sizeof(text), "%d.%d", version / 1000, version % 1000 / 10);
    info_text(report, "driver_cuda", text);
}

static void one_gpu(info_report_t *report, const driver_t *driver, int ordinal)
{
    char number[16], name[256] = "?", capability[32];
    int device = 0, major = 0, minor = 0;
    size_t bytes = 0;
    snprintf(number, sizeof(number), "%d", ordinal);
    info_begin(report, "gpu", number);
    if (driver->device_get(&device, ordinal) != 0 ||
        driver->device_get_name(name, (int)sizeof(name), device) != 0 ||
        driver->device_total_mem(&bytes, device) != 0 ||
        driver->device_get_attribute(&major, ATTRIBUTE_CAPABILITY_MAJOR, device) != 0 ||
        driver->device_get_attribute(&minor, ATTRIBUTE_CAPABILITY_MINOR, device) != 0) {
        tw_warn("gpu %d: the driver does not answer", ordinal);
    }
    snprintf(capability, sizeof(capability), "%d.%d", major, minor);
    info_text(report, "model", name);
    info_int(report, "memory_bytes", (int64_t)bytes);
    info_text(report, "compute_capability", capability);
    info_end(report);
}

void info_gpus(info_report_t *report)
{
    driver_t driver = {.library = NULL};
    char reason[512] = "";
    int is_open = driver_open(&driver, reason, sizeof(reason));
    int n_gpus = is_open ? count_gpus(&driver, reason, sizeof(reason)) : 0;
    info_begin(report, "cuda", NULL);
    info_int(report, "gpus", n_gpus);
    if (reason[0] != '\0') {
        info_text(report, "reason", reason);
    }
    if (is_open) {
        driver_version(report, &driver);
    }
    info_end(report);
    for (int i = 0; i < n_gpus; i++) {
        one_gpu(report, &driver, i);
    }
    if (driver.library) {
        dlclose(driver.library);
    }
}

/* ---- NCCL ---------------------------------------------------------------------------------------------- */

/** Format NCCL's version number: 22809 is 2.28.9. Versions before 2.9 have a shorter one: 2809 is 2.8.9. */
static void format_nccl_version(int code, char *buf, size_t buf_bytes)
{
    int major = code >= 10000 ? 10000 : 1000;
    snprintf(buf, buf_bytes, "%d.%d.%d", code / major, code % major / 100, code % 100);
}

void info_nccl(info_report_t *report)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const char *reason = !library ? dlerror() : NULL;
    int (*get_version)(int *) = NULL;
    int code = 0;
    info_begin(report, "nccl", NULL);
    info_bool(report, "found", library != NULL);
    if (reason) {
        info_text(report, "reason", reason);
    }
    if (library && info_find(library, "ncclGetVersion", &get_version) && get_version(&code) == 0) {
        char version[32];
        format_nccl_version(code, version, sizeof(version));
        info_text(report, "version", version);
    }
    info_end(report);
    if (library) {
        dlclose(library);
    }
}
