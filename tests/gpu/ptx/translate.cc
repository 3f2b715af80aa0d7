#include "tests/gpu/ptx/translate.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "tests/gpu/ptx/report.h"
#include "tests/gpu/ptx/settings.h"

namespace tw::ptx
{

namespace
{

bool begins(const std::string &text, const char *with)
{
    return text.rfind(with, 0) == 0;
}

bool is_number(const std::string &text)
{
    return isdigit((unsigned char)text[0]) || (text[0] == '-' && text.size() > 1);
}

u64 number_in(const std::string &text)
{
    if (text[0] == '-') {
        return 0 - number_in(text.substr(1));
    }
    const bool bits = text.size() > 2 && text[0] == '0' && strchr("fFdD", text[1]) != nullptr &&
                      (text.size() == 10 || text.size() == 18);
    return bits ? strtoull(text.c_str() + 2, nullptr, 16) : strtoull(text.c_str(), nullptr, 0);
}

const std::set<std::string> special_names = {
    "%tid.x",       "%tid.y",       "%tid.z",
    "%ntid.x",      "%ntid.y",      "%ntid.z",
    "%ctaid.x",     "%ctaid.y",     "%ctaid.z",
    "%nctaid.x",    "%nctaid.y",    "%nctaid.z",
    "%laneid",      "%lanemask_lt", "%lanemask_le",
    "%lanemask_gt", "%lanemask_ge", "%lanemask_eq",
    "%warpid",      "%nwarpid",     "%dynamic_smem_size",
};

Round round_of(const Statement &s)
{
    const char *names[] = {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"};
    for (u8 i = 7; i > 0; i--) {
        if (s.has(names[i])) {
            return (Round)i;
        }
    }
    return Round::rn;
}

Space space_of_words(const Statement &s)
{
    return s.has("global")                                                   ? Space::global
           : s.has("shared") || s.has("shared::cta")                         ? Space::shared
           : s.has("local")                                                  ? Space::local
           : s.has("param") || s.has("param::entry") || s.has("param::func") ? Space::param
           : s.has("const")                                                  ? Space::constant
                                                                             : Space::generic;
}

/* As if an instruction were not there; of one with a guard the guard alone, but for branches. */
void take_out(Insn *in)
{
    const bool guarded = in->guard.kind != Operand::nothing && in->flow != Flow::branch;
    in->guard = Operand();
    if (!guarded) {
        in->run = nullptr;
        in->flow = Flow::plain;
    }
}

/* What the modifiers mean whatever the instruction. */
void read_modifiers(Statement *s)
{
    const std::vector<std::string> words = split_at(s->opcode, '.');
    std::vector<Type> types;
    s->word = words[0];
    s->modifiers.insert(words.begin() + 1, words.end());
    for (const std::string &word : words) {
        if (type_named(word) != Type::none) {
            types.push_back(type_named(word));
        }
    }
    Insn &in = s->insn;
    in.type = types.empty() ? Type::b32 : types[0];
    in.from_type = types.size() > 1 ? types[1] : Type::none;
    in.round = round_of(*s);
    in.space = space_of_words(*s);
    in.ftz = s->has("ftz");
    in.sat = s->has("sat");
    in.nan = s->has("NaN");
    in.relu = s->has("relu");
    in.carry_out = s->has("cc");
    in.constant_cache = s->has("nc");
}

} // namespace

std::vector<std::string> split_at(const std::string &text, char at)
{
    std::vector<std::string> parts(1);
    for (char c : text) {
        if (c == at) {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    return parts;
}

std::vector<std::string> list_in(const std::string &text)
{
    if (text[0] != '{' && text[0] != '(') {
        return {text};
    }
    return text.size() == 2 ? std::vector<std::string>() : split_at(text.substr(1, text.size() - 2), ',');
}

/* ---- a statement ---- */

void Statement::unknown() const
{
    fatal(translator->place() + ": the machine does not know " + opcode);
}

u8 Statement::which(const std::vector<const char *> &names) const
{
    for (size_t i = 0; i < names.size(); i++) {
        if (has(names[i])) {
            return (u8)i;
        }
    }
    unknown();
}

Operand Statement::operand(size_t i, Type type)
{
    if (i >= operands.size()) {
        unknown();
    }
    return translator->operand(operands[i], type);
}

void Statement::take(Handler run, Type type, size_t n)
{
    Operand *const to[] = {&insn.d, &insn.a, &insn.b, &insn.c};
    insn.run = run;
    if (!run) {
        unknown();
    }
    for (size_t i = 0; i < n; i++) {
        *to[i] = operand(i, type);
    }
}

void Statement::take_pair(size_t i, Type first, Type second)
{
    const std::vector<std::string> parts = split_at(operands[i], '|');
    insn.d = translator->operand(parts[0], first);
    if (parts.size() > 1) {
        insn.d2 = translator->operand(parts[1], second);
    }
}

void Statement::take_vector(size_t i, Type type)
{
    for (const std::string &each : list_in(operands[i])) {
        insn.vector.push_back(translator->operand(each, type));
    }
}

void Statement::take_address(size_t i, Operand *base, s64 *offset)
{
    const std::string inside = operands[i].substr(1, operands[i].size() - 2);
    const size_t sign = inside.find_first_of("+-", 1);
    const std::string name = inside.substr(0, sign);
    if (sign != std::string::npos) {
        const size_t from = inside[sign] == '+' ? sign + 1 : sign;
        *offset = strtoll(inside.c_str() + from, nullptr, 0);
    }
    if (translator->space_of(name) == Space::argument) {
        insn.space = Space::argument;
    }
    *base = translator->operand(name, Type::b64);
}

u64 Statement::immediate(size_t i) const
{
    return number_in(operands.at(i));
}

/* ---- operands ---- */

Operand Translator::reg(u8 width)
{
    Operand o;
    o.kind = Operand::reg;
    o.width = width;
    o.offset = kernel->register_bytes;
    kernel->register_bytes += 32u * width;
    return o;
}

/* Of 16 bits in 16, of 8 in 8: what is cut off is no part of the number. */
Operand Translator::constant(u64 value, Type type)
{
    const int bits = bits_of(type);
    Operand o;
    o.kind = Operand::constant;
    o.width = bits == 64 ? 8 : 4;
    value &= bits == 64 ? ~0ull : bits == 16 ? 0xffffu : bits == 8 ? 0xffu : 0xffffffffu;
    const auto key = std::make_pair(o.width, value);
    if (!constants.count(key)) {
        constants[key] = (u32)kernel->constants.size();
        kernel->constants.resize(kernel->constants.size() + 32u * o.width);
        for (u32 l = 0; l < 32; l++) {
            memcpy(&kernel->constants[constants[key] + l * o.width], &value, o.width);
        }
    }
    o.offset = constants[key];
    return o;
}

Operand Translator::operand(const std::string &name, Type type)
{
    if (name[0] == '!') {
        Operand o = operand(name.substr(1), type);
        o.negated = true;
        return o;
    }
    if (name == "_") {
        return Operand();
    }
    if (is_number(name)) {
        return constant(number_in(name), type);
    }
    const auto found = names.find(name);
    if (found != names.end()) {
        return found->second;
    }
    if (name == "WARP_SZ") {
        return constant(32, type);
    }
    if (special_names.count(name)) {
        if (!kernel->specials.count(name)) {
            kernel->specials[name] = reg(4);
        }
        return kernel->specials[name];
    }
    const Type address = bits_of(type) == 64 ? Type::b64 : Type::b32;
    if (symbols.count(name)) {
        return constant(symbols[name].offset, address);
    }
    const auto variable = module.variables.find(name);
    if (variable == module.variables.end()) {
        fatal(place() + ": unknown operand " + name);
    }
    const bool open = variable->second.space == Space::shared && variable->second.bytes == 0;
    return constant(open ? kernel->dynamic_shared_offset() : variable->second.offset, address);
}

Space Translator::space_of(const std::string &name) const
{
    const auto found = symbols.find(name);
    return found == symbols.end() ? Space::generic : found->second.space;
}

u32 Translator::argument(const std::string &name) const
{
    return (u32)symbols.at(name).offset;
}

std::string Translator::place() const
{
    return module.path + ":" + std::to_string(line);
}

/* ---- functions ---- */

u32 Translator::local(u32 bytes, u32 align)
{
    const u32 start = (kernel->local_bytes + align - 1) / align * align;
    kernel->local_bytes = start + bytes;
    return start;
}

Translator::Frame Translator::make_frame(const Function &f)
{
    Frame frame = {&f, {}, {}, 0};
    for (const Parameter &p : f.parameters) {
        if (f.entry) {
            const u32 align = std::max(1u, p.align);
            const u32 start = (kernel->parameter_bytes + align - 1) / align * align;
            frame.parameters.push_back({start, p.bytes});
            kernel->parameter_bytes = start + p.bytes;
        } else {
            frame.parameters.push_back({local(p.bytes, 16), p.bytes});
        }
    }
    for (const Parameter &p : f.results) {
        frame.results.push_back({local(p.bytes, 16), p.bytes});
    }
    return frame;
}

const Translator::Frame *Translator::call(const std::string &name, u32 *index)
{
    const auto found = module.functions.find(name);
    if (found == module.functions.end()) {
        return nullptr;
    }
    size_t i = 0;
    while (i < frames.size() && frames[i].function != &found->second) {
        i++;
    }
    if (i == frames.size()) {
        frames.push_back(make_frame(found->second));
    }
    *index = (u32)i;
    calls.push_back({kernel->code.size(), *index});
    return &frames[i];
}

void Translator::bind_parameters(const Frame &frame)
{
    for (size_t i = 0; i < frame.parameters.size(); i++) {
        symbols[frame.function->parameters[i].name] = {frame.function->entry ? Space::param : Space::argument,
                                                       frame.parameters[i].offset};
    }
    for (size_t i = 0; i < frame.results.size(); i++) {
        symbols[frame.function->results[i].name] = {Space::argument, frame.results[i].offset};
    }
}

const std::string &Translator::text(size_t ahead) const
{
    static const std::string nothing = ";";
    return at + ahead < function->body.size() ? function->body[at + ahead].text : nothing;
}

void Translator::translate_function(Frame *frame)
{
    function = frame->function;
    frame->begin = (u32)kernel->code.size();
    names.clear();
    symbols.clear();
    labels.clear();
    tables.clear();
    fixes.clear();
    bind_parameters(*frame);
    for (at = 0; at < function->body.size();) {
        line = function->body[at].line;
        if (!declaration()) {
            instruction();
        }
    }
    finish();
}

/* Declarations, labels and what there is no need for. */
bool Translator::declaration()
{
    const std::string &word = text();
    if (begins(word, ".loc ")) {
        sscanf(word.c_str(), ".loc %d %d", &source_file, &source_line);
        at++;
    } else if (word == "{" || word == "}" || word == ";") {
        at++;
    } else if (word == ".pragma") {
        for (; text() != ";"; at++) {
        }
    } else if (word == ".reg") {
        registers();
    } else if (word == ".local" || word == ".shared" || word == ".param") {
        variable();
    } else if (text(1) == ":") {
        label();
    } else {
        return false;
    }
    return true;
}

void Translator::registers()
{
    const u8 width = bits_of(type_named(text(1).substr(1))) == 64 ? 8 : 4;
    for (at += 2; text() != ";";) {
        const std::string name = text();
        if (text(1) == "<") {
            const u64 n = number_in(text(2));
            for (u64 i = 0; i < n; i++) {
                names[name + std::to_string(i)] = reg(width);
            }
            at += 4;
        } else if (name == ",") {
            at++;
        } else {
            names[name] = reg(width);
            at++;
        }
    }
}

void Translator::variable()
{
    const std::string space = text();
    u32 align = 1, bytes = 1;
    for (at++; text()[0] == '.'; at++) {
        if (text() == ".align") {
            at++;
            align = (u32)number_in(text());
        } else if (type_named(text().substr(1)) != Type::none) {
            bytes = (u32)std::max(1, bits_of(type_named(text().substr(1))) / 8);
        }
    }
    const std::string name = text();
    align = std::max(align, bytes);
    for (at++; text() == "["; at += 3) {
        bytes *= (u32)number_in(text(1));
    }
    if (space == ".shared") {
        const u32 start = (kernel->shared_bytes + align - 1) / align * align;
        symbols[name] = {Space::shared, start};
        kernel->shared_bytes = start + bytes;
    } else {
        symbols[name] = {space == ".local" ? Space::local : Space::argument,
                         local(bytes, std::max(16u, align))};
    }
}

void Translator::label()
{
    const std::string name = text();
    at += 2;
    if (text() != ".branchtargets") {
        labels[name] = (u32)kernel->code.size();
        return;
    }
    for (at++; text() != ";"; at++) {
        if (text() != ",") {
            tables[name].push_back(text());
        }
    }
}

std::vector<std::string> Translator::operands()
{
    std::vector<std::string> all;
    std::string one;
    int depth = 0;
    for (; text() != ";"; at++) {
        const std::string &word = text();
        if (begins(word, ".loc ")) {
            continue;
        }
        depth += word == "[" || word == "{" || word == "(" ? 1 : 0;
        depth -= word == "]" || word == "}" || word == ")" ? 1 : 0;
        if (word == "," && depth == 0) {
            all.push_back(one);
            one.clear();
        } else {
            one += word;
        }
    }
    at++;
    if (!one.empty()) {
        all.push_back(one);
    }
    return all;
}

void Translator::instruction()
{
    Statement s = {};
    s.translator = this;
    s.insn.line = line;
    s.insn.source_file = source_file;
    s.insn.source_line = source_line;
    if (text() == "@") {
        at++;
        const bool negated = text() == "!";
        at += negated;
        s.insn.guard = operand(text(), Type::pred);
        s.insn.guard.negated = negated;
        at++;
    }
    s.opcode = text();
    at++;
    s.operands = operands();
    read_modifiers(&s);
    const Maker maker = maker_of(s.word);
    if (!maker) {
        s.unknown();
    }
    maker(s);
    if (!settings().mutant.empty() && place().substr(place().rfind('/') + 1) == settings().mutant) {
        take_out(&s.insn);
    }
    if (!s.label.empty() && (s.insn.flow == Flow::branch || s.insn.flow == Flow::table)) {
        fixes.push_back({kernel->code.size(), s.label});
    }
    kernel->code.push_back(std::move(s.insn));
}

/* What follows the last instruction, and where branches go. */
void Translator::finish()
{
    Insn end;
    end.flow = function->entry ? Flow::exit : Flow::ret;
    end.line = line;
    kernel->code.push_back(end);
    for (const Fix &fix : fixes) {
        Insn &in = kernel->code[fix.insn];
        if (in.flow == Flow::branch) {
            in.target = labels.at(fix.labels[0]);
            continue;
        }
        for (const std::string &name : tables.at(fix.labels[0])) {
            in.table.push_back(labels.at(name));
        }
    }
}

void Translator::run(const Function &entry)
{
    frames.push_back(make_frame(entry));
    kernel->parameters = frames[0].parameters;
    for (size_t i = 0; i < frames.size(); i++) {
        Frame frame = frames[i];
        translate_function(&frame);
        frames[i].begin = frame.begin;
    }
    for (const auto &[insn, frame] : calls) {
        kernel->code[insn].target = frames[frame].begin;
    }
    kernel->register_bytes = (kernel->register_bytes + 63) / 64 * 64;
    kernel->local_bytes = (kernel->local_bytes + 15) / 16 * 16;
}

std::unique_ptr<Kernel> translate(const Module &module, const Function &entry, MakerOf maker_of)
{
    auto kernel = std::make_unique<Kernel>();
    kernel->name = entry.name;
    kernel->module = &module;
    kernel->function = &entry;
    kernel->shared_bytes = module.shared_bytes;
    Translator(module, kernel.get(), maker_of).run(entry);
    return kernel;
}

} // namespace tw::ptx
