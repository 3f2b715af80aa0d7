/* The kernels of the files of PTX_FILES, each translated when it is first launched. */
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/gpu/ptx/launch.h"
#include "tests/gpu/ptx/opcodes.h"
#include "tests/gpu/ptx/parse.h"
#include "tests/gpu/ptx/report.h"
#include "tests/gpu/ptx/settings.h"
#include "tests/gpu/ptx/translate.h"

namespace tw::ptx
{

namespace
{

/* _GLOBAL__N__1234abcd_12_sums_cuda_cu_5678cdef, with a digit less or more: without the two hashes. */
std::string stable_name(const std::string &name)
{
    static const std::regex hashes("_GLOBAL__N__[0-9a-f]{8}_([0-9]+_[A-Za-z0-9_]+_cu_)[0-9a-f]{8}");
    return std::regex_replace(name, hashes, "_GLOBAL__N__$1");
}

struct Place {
    std::string file, name;
};

using Index = std::map<std::string, Place>;

void index_file(const std::string &path, Index *index)
{
    const std::string mark = ".entry ";
    std::ifstream in(path);
    if (!in) {
        fatal(path + ": cannot be read");
    }
    for (std::string line; std::getline(in, line);) {
        const size_t at = line.find(mark);
        if (at != std::string::npos && line.find("//") == std::string::npos) {
            const std::string name = line.substr(at + mark.size());
            const std::string kernel = name.substr(0, name.find('('));
            (*index)[stable_name(kernel)] = {path, kernel};
        }
    }
}

Index make_index()
{
    Index index;
    std::istringstream paths(settings().files);
    for (std::string path; paths >> path;) {
        if (!std::filesystem::is_directory(path)) {
            index_file(path, &index);
            continue;
        }
        for (const auto &each : std::filesystem::recursive_directory_iterator(path)) {
            if (each.path().extension() == ".ptx") {
                index_file(each.path(), &index);
            }
        }
    }
    return index;
}

} // namespace

const Kernel *find_kernel(const std::string &name)
{
    static const auto *index = new Index(make_index());
    static auto *modules = new std::map<std::string, std::unique_ptr<Module>>;
    static auto *kernels = new std::map<std::string, std::unique_ptr<Kernel>>;
    const auto found = index->find(stable_name(name));
    if (found == index->end()) {
        return nullptr;
    }
    std::unique_ptr<Module> &module = (*modules)[found->second.file];
    std::unique_ptr<Kernel> &kernel = (*kernels)[found->first];
    if (!module) {
        module = parse_module(found->second.file);
    }
    if (!kernel) {
        kernel = translate(*module, module->functions.at(found->second.name), opcode_maker);
    }
    return kernel.get();
}

} // namespace tw::ptx
