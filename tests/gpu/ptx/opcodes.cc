#include "tests/gpu/ptx/opcodes.h"

#include <unordered_map>

#include "tests/gpu/ptx/makers.h"

namespace tw::ptx
{

extern const MakerTable integer_makers, float_makers, compare_makers, convert_makers, memory_makers,
    lane_makers, matrix_makers, control_makers;

Maker opcode_maker(const std::string &word)
{
    static const auto *makers = [] {
        auto *all = new std::unordered_map<std::string, Maker>;
        for (const MakerTable *table : {&integer_makers, &float_makers, &compare_makers, &convert_makers,
                                        &memory_makers, &lane_makers, &matrix_makers, &control_makers}) {
            all->insert(table->begin(), table->end());
        }
        return all;
    }();
    const auto found = makers->find(word);
    return found == makers->end() ? nullptr : found->second;
}

} // namespace tw::ptx
