/* Libraries that a job opens while it runs, and tables of addresses that the system does not let anybody
 * change. */
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include <dlfcn.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/plugin/interpose/extension.h"
#include "tests/plugin/interpose/job.h"

namespace job
{

static const char *variable(const char *name)
{
    CHECK_THAT(getenv(name) != nullptr, name);
    return getenv(name);
}

template <typename Function>
static Function *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    CHECK_THAT(symbol != nullptr, name);
    return (Function *)symbol;
}

static void *open(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK_THAT(library != nullptr, dlerror());
    return library;
}

struct Extension {
    void *library = open(variable("EXTENSION"));
    decltype(extension_init_rank) *init_rank =
        find<decltype(extension_init_rank)>(library, "extension_init_rank");
    decltype(extension_all_gather) *all_gather =
        find<decltype(extension_all_gather)>(library, "extension_all_gather");

    void expect(ncclComm_t comm, const char *codec) const
    {
        Gather gather = [&](const void *from, void *to, cudaStream_t stream) {
            return all_gather(from, to, COUNT, ncclBfloat16, comm, stream);
        };
        expect_gather(gather, all_ranks(), COUNT, ncclBfloat16, codec, true);
    }
};

static void expect_program(ncclComm_t comm, const char *codec)
{
    expect_gather(all_gather(comm, COUNT, ncclBfloat16), all_ranks(), COUNT, ncclBfloat16, codec, true);
}

/** It is seen when the program makes its next communicator. */
static void loaded_later()
{
    ncclComm_t first = join();
    expect_program(first, "int8");
    Extension extension;
    ncclComm_t second = join();
    extension.expect(second, "int8");
    extension.expect(first, "int8");
    expect_program(second, "int8");
    OK(ncclCommDestroy(first));
    OK(ncclCommDestroy(second));
}

/** It makes one itself, which only NCCL sees, and so the net plugin. */
static void joins_later()
{
    ncclComm_t first = join(), own;
    ncclUniqueId id;
    Extension extension;
    id = share_id();
    OK(extension.init_rank(&own, self().world, id, self().rank));
    extension.expect(own, "int8");
    extension.expect(first, "int8");
    expect_program(own, "int8");
    OK(ncclCommDestroy(first));
    OK(ncclCommDestroy(own));
}

/* ---- refused ------------------------------------------------------------------------------------------- */

/** What the linker has made read-only of an object. */
struct Relro {
    std::string object; /**< end of its name; "": the program */
    uintptr_t first = 0, end = 0;

    explicit Relro(const std::string &name) : object(name)
    {
        dl_iterate_phdr(look, this);
        CHECK_THAT(first < end, object);
    }
    static int look(dl_phdr_info *info, size_t, void *arg)
    {
        auto self = (Relro *)arg;
        std::string name = info->dlpi_name;
        bool is_it = self->object.empty() ? name.empty()
                                          : name.size() >= self->object.size() &&
                                                name.compare(name.size() - self->object.size(),
                                                             std::string::npos, self->object) == 0;
        for (int i = 0; is_it && i < info->dlpi_phnum; i++) {
            const ElfW(Phdr) &header = info->dlpi_phdr[i];
            if (header.p_type == PT_GNU_RELRO) {
                auto page = (uintptr_t)sysconf(_SC_PAGESIZE);
                self->first = (info->dlpi_addr + header.p_vaddr) / page * page;
                self->end = (info->dlpi_addr + header.p_vaddr + header.p_memsz) / page * page;
            }
        }
        return is_it;
    }

    /** From now on, whoever wants to change its protection is told EPERM. */
    void refuse() const
    {
        const auto high = (uint32_t)(first >> 32), low = (uint32_t)first, low_end = (uint32_t)end;
        CHECK((uint32_t)(end >> 32) == high && low < low_end);
        constexpr uint32_t at = offsetof(seccomp_data, args);
        sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mprotect, 0, 6),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at + 4),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high, 0, 4),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
            BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low, 0, 2),
            BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low_end, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK_THAT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, strerror(errno));
    }

    void expect_read_only() const
    {
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
            unsigned long from, to;
            char flags[8];
            CHECK(sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, flags) == 3);
            CHECK_THAT(to <= first || from >= end || flags[1] == '-', line);
        }
    }
};

static int redirect()
{
    return find<int()>(open(variable("LIBRARY")), "tw_nccl_redirect")();
}

/** One of several tables cannot be changed: none is. */
static void refused()
{
    Extension extension;
    Relro program(""), opened("libextension.so");
    (variable("REFUSED") == std::string("program") ? program : opened).refuse();
    CHECK(redirect() == -1);
    CHECK(redirect() == -1);
    program.expect_read_only();
    opened.expect_read_only();
    ncclComm_t comm = join();
    (void)reached("ncclAllGather");
    expect_program(comm, "");
    extension.expect(comm, "");
    CHECK(reached("ncclAllGather") == 2);
    OK(ncclCommDestroy(comm));
}

/** Of a library that came later: no further communicator is made, as on other ranks its calls may be
 *  redirected. */
static void refused_later()
{
    CHECK(redirect() > 0);
    ncclComm_t first = join();
    Extension extension;
    Relro opened("libextension.so");
    opened.refuse();
    ncclUniqueId id = share_id();
    ncclComm_t second = nullptr, child = nullptr;
    CHECK(ncclCommInitRank(&second, self().world, id, self().rank) == ncclSystemError);
    CHECK(ncclCommSplit(first, 0, self().rank, &child, nullptr) == ncclSystemError);
    CHECK(reached("ncclCommInitRank") == 1 && reached("ncclCommSplit") == 0);
    opened.expect_read_only();
    expect_program(first, "int8");
    OK(ncclCommDestroy(first));
}

Scenarios loading_scenarios()
{
    return {
        {"loaded_later", loaded_later},
        {"joins_later", joins_later},
        {"refused", refused},
        {"refused_later", refused_later},
    };
}

} // namespace job
