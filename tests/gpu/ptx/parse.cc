#include "tests/gpu/ptx/parse.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/gpu/ptx/memory.h"
#include "tests/gpu/ptx/report.h"

namespace tw::ptx
{

namespace
{

bool in_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

bool begins(const std::string &text, const char *with)
{
    return text.rfind(with, 0) == 0;
}

u64 number_in(const std::string &text)
{
    return strtoull(text.c_str(), nullptr, 0);
}

/* ---- words ---- */

class Lexer
{
  public:
    explicit Lexer(Module *the_module) : module(the_module)
    {
    }

    std::vector<Token> read()
    {
        std::ifstream in(module->path);
        if (!in) {
            fatal(module->path + ": cannot be read");
        }
        for (std::string line; std::getline(in, line);) {
            module->lines.push_back(line);
            if (!is_directive(line)) {
                split(line);
            }
        }
        return std::move(tokens);
    }

  private:
    /* What is a line of its own, for debuggers or for ptxas. */
    bool is_directive(const std::string &line)
    {
        const size_t at = line.find_first_not_of(" \t");
        const std::string rest = at == std::string::npos ? "" : line.substr(at);
        int file, number;
        char name[2048];
        if (in_section) {
            in_section = !begins(rest, "}");
            return true;
        }
        in_section = begins(rest, ".section");
        if (begins(rest, ".loc") && sscanf(rest.c_str() + 4, "%d %d", &file, &number) == 2) {
            add(".loc " + std::to_string(file) + " " + std::to_string(number));
            return true;
        }
        if (begins(rest, ".file") && sscanf(rest.c_str() + 5, "%d \"%2047[^\"]", &file, name) == 2) {
            module->files[file] = name;
            return true;
        }
        return in_section || begins(rest, ".version") || begins(rest, ".target") ||
               begins(rest, ".address_size");
    }

    void split(const std::string &line)
    {
        for (size_t i = 0; i < line.size();) {
            if (in_comment) {
                in_comment = line.compare(i, 2, "*/") != 0;
                i += in_comment ? 1 : 2;
            } else if (line.compare(i, 2, "//") == 0) {
                return;
            } else if (line.compare(i, 2, "/*") == 0) {
                in_comment = true;
                i += 2;
            } else if (isspace((unsigned char)line[i])) {
                i++;
            } else {
                const size_t end = end_of(line, i);
                add(line.substr(i, end - i));
                i = end;
            }
        }
    }

    static size_t end_of(const std::string &line, size_t i)
    {
        if (line[i] == '"') {
            return line.find('"', i + 1) + 1;
        }
        if (!in_word(line[i])) {
            return i + 1;
        }
        while (i < line.size() && (in_word(line[i]) || line.compare(i, 2, "::") == 0)) {
            i += line[i] == ':' ? 2 : 1;
        }
        return i;
    }

    void add(const std::string &text)
    {
        tokens.push_back({text, (int)module->lines.size()});
    }

    Module *module;
    std::vector<Token> tokens;
    bool in_comment = false, in_section = false;
};

/* ---- declarations ---- */

class Parser
{
  public:
    Parser(Module *the_module, std::vector<Token> the_tokens)
        : module(the_module), tokens(std::move(the_tokens))
    {
    }

    void run()
    {
        while (at < tokens.size()) {
            const std::string &word = text();
            if (word == ".entry" || word == ".func") {
                function();
            } else if (word == ".global" || word == ".const" || word == ".shared") {
                variable();
            } else {
                at++;
            }
        }
    }

  private:
    const std::string &text(size_t ahead = 0) const
    {
        if (at + ahead >= tokens.size()) {
            fatal(module->path + ": ends too early");
        }
        return tokens[at + ahead].text;
    }

    static u32 bytes_of(const std::string &word)
    {
        const Type type = word[0] == '.' ? type_named(word.substr(1)) : Type::none;
        return type == Type::none ? 0 : (u32)std::max(1, bits_of(type) / 8);
    }

    void function()
    {
        Function f;
        f.entry = text() == ".entry";
        at++;
        if (text() == "(") {
            f.results = parameters();
        }
        f.name = text();
        at++;
        if (text() == "(") {
            f.parameters = parameters();
        }
        for (; text() != "{" && text() != ";"; at++) {
            if (text() == ".maxntid") {
                f.max_threads = (u32)number_in(text(1));
            }
        }
        if (text() == "{") {
            body(&f);
            module->functions[f.name] = std::move(f);
        }
    }

    void body(Function *f)
    {
        const size_t begin = at + 1;
        int depth = 0;
        do {
            depth += text() == "{" ? 1 : text() == "}" ? -1 : 0;
            at++;
        } while (depth);
        f->body.assign(tokens.begin() + (long)begin, tokens.begin() + (long)at - 1);
    }

    std::vector<Parameter> parameters()
    {
        std::vector<Parameter> all;
        u32 align = 0, bytes = 0;
        for (at++; text() != ")"; at++) {
            const std::string &word = text();
            if (word == ".param" || word == ".reg") {
                align = bytes = 0;
            } else if (word == ".align") {
                at++;
                align = (u32)number_in(text());
            } else if (bytes_of(word)) {
                bytes = bytes_of(word);
            } else if (word == "[") {
                all.back().bytes *= (u32)number_in(text(1));
                at += 2;
            } else if (word[0] != '.' && word != ",") {
                all.push_back({word, bytes, align ? align : bytes});
            }
        }
        at++;
        return all;
    }

    /* A variable of the module: in shared memory a place, else memory. */
    void variable()
    {
        Variable v;
        u32 each = 1;
        bool open = false;
        v.space = text() == ".shared" ? Space::shared : Space::global;
        for (at++; text()[0] == '.'; at++) {
            if (text() == ".align") {
                at++;
                v.align = (u32)number_in(text());
            } else if (bytes_of(text())) {
                each = bytes_of(text());
            }
        }
        const std::string name = text();
        for (at++; text() == "["; at += open ? 2 : 3) {
            open = text(1) == "]";
            v.bytes *= open ? 0 : number_in(text(1));
        }
        v.bytes *= each;
        v.align = std::max(v.align, each);
        place(&v, values(), each);
        module->variables[name] = v;
    }

    std::vector<u64> values()
    {
        std::vector<u64> all;
        for (; text() != ";"; at++) {
            const std::string &word = text();
            if (isdigit((unsigned char)word[0])) {
                const bool bits = word.size() > 1 && word[1] == 'f';
                all.push_back(bits ? strtoull(word.c_str() + 2, nullptr, 16) : number_in(word));
            }
        }
        at++;
        return all;
    }

    void place(Variable *v, const std::vector<u64> &init, u32 each)
    {
        if (v->space == Space::shared) {
            v->offset = (module->shared_bytes + v->align - 1) / v->align * v->align;
            module->shared_bytes = (u32)(v->offset + v->bytes);
            return;
        }
        u8 *memory = (u8 *)aligned_alloc(256, (v->bytes + 511) / 256 * 256);
        memset(memory, 0, v->bytes);
        for (size_t i = 0; i < init.size() && (i + 1) * each <= v->bytes; i++) {
            memcpy(memory + i * each, &init[i], each);
        }
        memory_add(memory, v->bytes, Home::module);
        v->offset = (u64)memory;
    }

    Module *module;
    std::vector<Token> tokens;
    size_t at = 0;
};

} // namespace

std::unique_ptr<Module> parse_module(const std::string &path)
{
    auto module = std::make_unique<Module>();
    module->path = path;
    std::vector<Token> tokens = Lexer(module.get()).read();
    Parser(module.get(), std::move(tokens)).run();
    return module;
}

} // namespace tw::ptx
