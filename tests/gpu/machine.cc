#include "tests/gpu/machine.h"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include "tests/gpu/codec_report.h"

namespace tw::gpu
{

std::string why_no_gpu()
{
    int n_devices = 0, driver = 0, runtime = 0;
    char text[256];
    const cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error == cudaSuccess && n_devices > 0) {
        return "";
    }
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0) {
        return "no driver was found (libcuda.so.1)";
    }
    snprintf(text, sizeof(text), "%s (the driver knows CUDA %d.%d, this program was built with %d.%d)",
             error != cudaSuccess ? cudaGetErrorString(error) : "no device", driver / 1000,
             driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return text;
}

std::string describe_gpu()
{
    cb_gpu_t device;
    size_t free_bytes = 0, total_bytes = 0;
    char text[512];
    if (cb_gpu_device(&device) != TW_OK || cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
        return "a GPU that does not answer";
    }
    snprintf(text, sizeof(text), "%s, %.1f GiB of memory, %.1f free; driver %s, runtime %s", device.name,
             (double)total_bytes / (1 << 30), (double)free_bytes / (1 << 30), device.driver, device.runtime);
    return text;
}

std::string why_not_shared()
{
    int device = 0, mode = cudaComputeModeDefault;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, device);
    if (mode == cudaComputeModeDefault) {
        return "";
    }
    return "the GPU's compute mode is " + std::to_string(mode) + ": it takes one process at a time";
}

Nccl find_nccl()
{
#ifdef TW_HAVE_NCCL
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        return {false, dlerror()};
    }
    int version = 0;
    char text[512];
    Dl_info info = {};
    auto get_version = (int (*)(int *))dlsym(library, "ncclGetVersion");
    if (get_version == nullptr || get_version(&version) != 0 || !dladdr((void *)get_version, &info)) {
        return {false, "libnccl.so.2 does not tell its version"};
    }
    snprintf(text, sizeof(text), "%d.%d.%d, %.400s", version / 10000, version % 10000 / 100, version % 100,
             info.dli_fname);
    return {true, text};
#else
    return {false, "no NCCL was found when this was built"};
#endif
}

std::string nccl_rank_path()
{
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
    const std::string self(path, n > 0 ? (size_t)n : 0);
    return self.substr(0, self.rfind('/') + 1) + "nccl_rank";
}

std::string why_no_plugin()
{
    const char *const folders = getenv("LD_LIBRARY_PATH");
    if (access(nccl_rank_path().c_str(), X_OK) != 0) {
        return "there is no " + nccl_rank_path();
    }
    for (const char *name : {"libnccl-net-thinwire.so", "libthinwire-nccl.so"}) {
        std::istringstream each(folders != nullptr ? folders : "");
        bool found = false;
        for (std::string folder; std::getline(each, folder, ':');) {
            found = found || access((folder + "/" + name).c_str(), R_OK) == 0;
        }
        if (!found) {
            return std::string("there is no ") + name + " in LD_LIBRARY_PATH";
        }
    }
    return "";
}

} // namespace tw::gpu
