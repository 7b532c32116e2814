#include "device/gpu_compiler.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include <dlfcn.h>

namespace jali {

namespace {

// A file that cannot be used; others may.
struct Unusable : std::runtime_error {
    using std::runtime_error::runtime_error;
};

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        const auto end = std::min(text.find('\n'), text.size());
        lines.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

std::string_view stripped(std::string_view line) {
    const auto first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) return {};
    return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

// The source line that a line of the log refers to, from 1 on: NVRTC writes name.cu(12), hipRTC
// .../CompileSource:12:3. 0: none.
std::size_t line_spoken_of(std::string_view said) {
    for (const std::string_view before : {".cu(", ".cu:", "CompileSource:"})
        for (auto at = said.find(before); at != std::string_view::npos; at = said.find(before, at + 1)) {
            std::size_t number = 0, k = at + before.size();
            for (; k < said.size() && std::isdigit(static_cast<unsigned char>(said[k])) != 0 &&
                   number < 1000000;
                 ++k)
                number = 10 * number + static_cast<std::size_t>(said[k] - '0');
            if (number > 0) return number;
        }
    return 0;
}

// The compiler's messages, with the lines of the kernel that they refer to.
std::string complaint(const std::string& name, std::string_view source, std::string_view log,
                      std::span<const std::string> arguments) {
    constexpr std::size_t most_lines = 40;
    std::string text = "the GPU compiler rejected kernel '" + name + "' (";
    for (const std::string& argument : arguments)
        text += (&argument == arguments.data() ? "" : " ") + argument;
    text += ")\n";
    const auto lines = lines_of(source), all = lines_of(log);
    for (const std::string_view said : std::span(all).first(std::min(all.size(), most_lines))) {
        text.append(said) += '\n';
        if (const std::size_t line = line_spoken_of(said); line > 0 && line <= lines.size())
            (text += "    " + std::to_string(line) + ": ").append(stripped(lines[line - 1])) += '\n';
    }
    text.pop_back();
    return text;
}

} // namespace

GpuCompiler::GpuCompiler(const GpuVendor& vendor, const std::string& path) : vendor_(vendor), path_(path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* why = dlerror();
        throw Unusable(why != nullptr ? why : path);
    }
    std::string missing;
    const auto find = [&](const char* member, auto& function) {
        const auto name = vendor.compiler.functions.find(member);
        const std::string symbol = name != vendor.compiler.functions.end() ? name->second : member;
        void* found = dlsym(library, symbol.c_str());
        if (found == nullptr) missing += (missing.empty() ? "" : ", ") + symbol;
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    find("version", ask_version_);
    find("create", create_);
    find("compile", compile_);
    find("log_size", log_size_);
    find("log", log_);
    find("code_size", code_size_);
    find("code", code_);
    find("destroy", destroy_);
    if (!missing.empty()) throw Unusable(path + " lacks " + missing);
    int major = 0, minor = 0;
    ask_version_(&major, &minor);
    version_ = std::to_string(major) + "." + std::to_string(minor);
}

const GpuCompiler& GpuCompiler::get(const GpuVendor& vendor) {
    static std::mutex mutex;
    // by the searched names, which a setting changes; never destroyed, as devices are not
    static auto& loaded =
        *new std::map<std::pair<const GpuVendor*, std::vector<std::string>>, std::unique_ptr<GpuCompiler>>;
    const VendorLibrary& library = vendor.compiler.library;
    const std::vector<std::string> files = library.candidates();
    std::lock_guard lock(mutex);
    std::unique_ptr<GpuCompiler>& compiler = loaded[{&vendor, files}];
    std::vector<std::string> why;
    for (auto file = files.begin(); !compiler && file != files.end(); ++file) {
        try {
            compiler.reset(new GpuCompiler(vendor, *file));
        } catch (const Unusable& error) {
            why.emplace_back(error.what());
        }
    }
    if (compiler) return *compiler;
    std::string text = "kernels for " + vendor.name + " devices need " +
                       (library.title.empty() ? "a run-time compiler" : library.title) +
                       ", which was not found: " + library.install;
    constexpr std::size_t most_reasons = 3;
    for (std::size_t k = why.size() - std::min(why.size(), most_reasons); k < why.size(); ++k)
        text += "\n  " + why[k];
    throw CompileError(text);
}

std::string GpuCompiler::why_not(const GpuVendor& vendor) {
    try {
        get(vendor);
    } catch (const CompileError& error) {
        const std::string_view text = error.what();
        return std::string(text.substr(0, text.find('\n')));
    }
    return "";
}

std::string GpuCompiler::identity() const {
    std::string text = kind() + " rtc " + version_;
    for (const std::string& option : vendor_.compiler.options) text += " " + option;
    return text;
}

std::vector<std::byte> GpuCompiler::compile(const std::string& source, const std::string& name,
                                            const std::string& architecture,
                                            std::span<const std::string> options) const {
    static std::mutex one_at_a_time; // thread safety of the compilers is not documented
    std::lock_guard lock(one_at_a_time);
    void* made = nullptr;
    if (const int error = create_(&made, source.c_str(), (name + ".cu").c_str(), 0, nullptr, nullptr))
        throw CompileError(path_ + " cannot start on kernel '" + name + "' (error " + std::to_string(error) +
                           ")");
    const auto destroy = [this](void* program) { destroy_(&program); };
    const std::unique_ptr<void, decltype(destroy)> program(made, destroy);
    std::vector<std::string> arguments = vendor_.compiler.options;
    if (!architecture.empty()) arguments.push_back(vendor_.compiler.target + architecture);
    arguments.insert(arguments.end(), options.begin(), options.end());
    std::vector<const char*> texts;
    for (const std::string& argument : arguments) texts.push_back(argument.c_str());
    if (compile_(program.get(), static_cast<int>(texts.size()), texts.data()) != 0)
        throw CompileError(complaint(name, source, log_of(program.get()), arguments));
    std::size_t size = 0;
    code_size_(program.get(), &size);
    std::vector<std::byte> code(size);
    if (size == 0 || code_(program.get(), reinterpret_cast<char*>(code.data())) != 0)
        throw CompileError(path_ + " gave no code for kernel '" + name + "' on " + architecture);
    return code;
}

std::string GpuCompiler::log_of(void* program) const {
    std::size_t size = 0;
    log_size_(program, &size);
    std::string log(std::max<std::size_t>(size, 1), '\0');
    log_(program, log.data());
    log.resize(std::min(log.find('\0'), log.size()));
    return log;
}

} // namespace jali
