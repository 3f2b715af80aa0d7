/* Every name that a libnccl exports is wrapped, or left to it on purpose: one that nobody has decided about
 * is a failure. */
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <gtest/gtest.h>

namespace
{

std::string product, on_host;

/** The functions and objects that a library defines for others. */
std::set<std::string> exported(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    Elf64_Ehdr header = {};
    file.read((char *)&header, sizeof(header));
    std::vector<Elf64_Shdr> sections(header.e_shnum);
    file.seekg((std::streamoff)header.e_shoff);
    file.read((char *)sections.data(), (std::streamsize)(sections.size() * sizeof(sections[0])));
    std::set<std::string> names;
    for (const Elf64_Shdr &section : sections) {
        if (section.sh_type != SHT_DYNSYM) {
            continue;
        }
        std::vector<Elf64_Sym> symbols(section.sh_size / sizeof(Elf64_Sym));
        file.seekg((std::streamoff)section.sh_offset);
        file.read((char *)symbols.data(), (std::streamsize)(symbols.size() * sizeof(symbols[0])));
        const Elf64_Shdr &text = sections[section.sh_link];
        std::string strings(text.sh_size, '\0');
        file.seekg((std::streamoff)text.sh_offset);
        file.read(strings.data(), (std::streamsize)strings.size());
        for (const Elf64_Sym &symbol : symbols) {
            if (symbol.st_shndx != SHN_UNDEF && ELF64_ST_BIND(symbol.st_info) != STB_LOCAL) {
                names.insert(strings.c_str() + symbol.st_name);
            }
        }
    }
    return names;
}

/* What NCCL 2.19 to 2.32 export, and why it is left to them. */
const std::set<std::string> left = {
    /* collectives that nothing is saved on, or that nobody quantizes */
    "ncclBcast",
    "ncclBroadcast",
    "ncclBroadcastConfig",
    "ncclReduce",
    "ncclReduceConfig",
    "ncclGather",
    "ncclGatherConfig",
    "ncclScatter",
    "ncclScatterConfig",
    /* messages: neither types' meaning nor sums are known */
    "ncclSend",
    "ncclRecv",
    /* questions */
    "ncclGetVersion",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclCommCount",
    "ncclCommCuDevice",
    "ncclCommUserRank",
    "ncclCommGetUniqueId",
    "ncclCommMemStats",
    "ncclCommQueryProperties",
    /* memory: no matter to the collectives */
    "ncclMemAlloc",
    "ncclMemFree",
    "ncclCommRegister",
    "ncclCommDeregister",
    "ncclCommSuspend",
    "ncclCommResume",
    /* windows and devices' communicators: what begins with them is wrapped */
    "ncclCommWindowDeregister",
    "ncclWinGetUserPtr",
    "ncclDevCommDestroy",
    "ncclGetLsaDevicePointer",
    "ncclGetLsaMultimemDevicePointer",
    "ncclGetMultimemDevicePointer",
    "ncclGetPeerDevicePointer",
    "ncclGetCftDeviceLeInfo",
    "ncclGetMultimemDeviceLeInfo",
    "ncclGetPeerDeviceLeInfo",
    "ncclGinBarrierCreateRequirement",
    "ncclGinInboxA2ACreateRequirement",
    "ncclGinOutboxCreateRequirement",
    "ncclLLA2ACalcSlots",
    "ncclLLA2ACreateRequirement",
    "ncclLsaBarrierCreateRequirement",
    "ncclTeamCft",
    "ncclTeamCftMultimem",
    "ncclTeamLsa",
    "ncclTeamRail",
    "ncclTeamRankToLsa",
    "ncclTeamRankToWorld",
    "ncclTeamWorld",
    /* NCCL's own settings */
    "ncclResetDebugInit",
    "ncclResetDebugInitInternal",
    "ncclParamBind",
    "ncclParamDumpAll",
    "ncclParamGet",
    "ncclParamGetAllParameterKeys",
    "ncclParamGetI16",
    "ncclParamGetI32",
    "ncclParamGetI64",
    "ncclParamGetI8",
    "ncclParamGetParameter",
    "ncclParamGetStr",
    "ncclParamGetU16",
    "ncclParamGetU32",
    "ncclParamGetU64",
    "ncclParamGetU8",
};

/** Besides NCCL's names. */
const std::set<std::string> own = {"tw_nccl_set_policy", "tw_nccl_redirect", "tw_nccl_is_wrapped",
                                   "tw_nccl_log_to", "tw_nccl_secret"};

/** Of wrapped ones, what NCCL 2.19 lacks. */
const std::set<std::string> later = {
    "ncclAlltoAll",       "ncclAllGatherConfig",  "ncclReduceScatterConfig",  "ncclAllReduceConfig",
    "ncclAlltoAllConfig", "ncclGroupSimulateEnd", "ncclCommInitRankScalable", "ncclCommShrink",
    "ncclCommGrow",       "ncclCommRevoke",       "ncclCommWindowRegister",   "ncclDevCommCreate",
    "ncclPutSignal",      "ncclSignal",           "ncclWaitSignal",           "ncclSetEncryption",
};

std::set<std::string> without(const std::set<std::string> &all, const std::set<std::string> &some)
{
    std::set<std::string> rest;
    std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::inserter(rest, rest.end()));
    return rest;
}

std::set<std::string> wrapped()
{
    return without(exported(product), own);
}

/** The one that was found when this was built, and those that the environment names, separated by colons. */
std::vector<std::string> libraries()
{
    std::vector<std::string> paths;
    void *nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    link_map *map = nullptr;
    if (nccl != nullptr && dlinfo(nccl, RTLD_DI_LINKMAP, &map) == 0) {
        paths.push_back(map->l_name);
    }
    const char *more = getenv("TW_TEST_NCCL_LIBRARIES");
    for (const char *at = more != nullptr ? more : ""; *at != '\0';) {
        size_t n = strcspn(at, ":");
        paths.emplace_back(at, n);
        at += n + (at[n] == ':');
    }
    return paths;
}

TEST(Names, EachIsDecidedAbout)
{
    std::vector<std::string> paths = libraries();
    if (paths.empty()) {
        GTEST_SKIP() << "no NCCL where this runs";
    }
    for (const std::string &path : paths) {
        std::set<std::string> names;
        for (const std::string &name : exported(path)) {
            if (name.compare(0, 4, "nccl") == 0) {
                names.insert(name);
            }
        }
        EXPECT_GT(names.size(), 25u) << path;
        EXPECT_EQ(without(without(names, wrapped()), left), std::set<std::string>())
            << path << ": who decides?";
        EXPECT_EQ(without(without(wrapped(), later), names), std::set<std::string>())
            << path << " lacks these";
    }
}

TEST(Names, NoneIsBoth)
{
    for (const std::string &name : wrapped()) {
        EXPECT_EQ(left.count(name), 0u) << name;
        EXPECT_EQ(name.compare(0, 4, "nccl"), 0) << name << " should not be exported";
    }
}

/* Jobs are tested with the product's own interface. */
TEST(Names, TheTestedLibraryHasTheSame)
{
    EXPECT_EQ(exported(product), exported(on_host));
    EXPECT_EQ(without(own, exported(product)), std::set<std::string>());
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (argc != 3) {
        fprintf(stderr, "usage: test_names LIBRARY TESTED_LIBRARY\n");
        return 2;
    }
    product = argv[1];
    on_host = argv[2];
    return RUN_ALL_TESTS();
}
