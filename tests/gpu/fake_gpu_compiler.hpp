// The run-time compiler that belongs to the fake driver of fake_gpu.cpp: it runs the host's. Part of
// fake_gpu.cpp and included nowhere else.
#pragma once
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include <unistd.h>

#include "fake_gpu_state.hpp"

namespace {

struct Program {
    std::string name, source, log, code;
};

// What became of texts that were compiled here: those for the two kinds of device differ in their last line
// alone, a comment that names the file.
std::map<std::string, std::string> compiled;
std::string without_last_line(const std::string& text) {
    return text.substr(0, text.rfind('\n', text.find_last_not_of('\n')) + 1);
}

// Compiles to nothing.
bool idle() {
    const char* compiler = std::getenv("JALI_FAKE_COMPILER");
    return compiler && !std::strcmp(compiler, "idle");
}

} // namespace

BOTH(nvrtcVersion, hiprtcVersion, (int* major, int* minor), (major, minor)) {
    *major = 0;
    *minor =
        idle() ? 2 : 1; // the cache of kernels knows compilers by their versions and must not mix these two
    return 0;
}
BOTH(nvrtcCreateProgram, hiprtcCreateProgram,
     (void** program, const char* source, const char* name, int headers, const char** texts,
      const char** names),
     (program, source, name, headers, texts, names)) {
    (void)headers;
    (void)texts;
    (void)names;
    *program = new Program{name, source, "", ""};
    return 0;
}
BOTH(nvrtcCompileProgram, hiprtcCompileProgram, (void* program, int count, const char** options),
     (program, count, options)) {
    (void)count;
    (void)options;
    auto* p = static_cast<Program*>(program);
    if (idle()) {
        p->code = image_of("");
        return 0;
    }
    const std::string text = without_last_line(p->source);
    {
        GUARD;
        if (const auto found = compiled.find(text); found != compiled.end()) {
            p->code = found->second;
            return 0;
        }
    }
    char folder[] = "/tmp/fake-gpu-XXXXXX";
    if (!mkdtemp(folder)) return 11;
    const std::string base = folder, source = base + "/" + p->name, object = base + "/kernel.so";
    std::ofstream(source) << "#define JALI_ONE_THREAD 1\n#line 1\n" << p->source;
    const char* cxx = std::getenv("CXX");
    const std::string command =
        std::string(cxx && *cxx ? cxx : "c++") +
        " -std=c++17 -Og -march=native -ffp-contract=off -fno-math-errno -fPIC -shared -w -o " + object +
        " -x c++ " + source + " 2> " + base + "/log";
    const int status = std::system(command.c_str());
    auto read = [](const std::string& path) {
        std::stringstream text;
        text << std::ifstream(path, std::ios::binary).rdbuf();
        return text.str();
    };
    p->log = read(base + "/log");
    p->code = image_of(status == 0 ? read(object) : "");
    if (!std::getenv("JALI_FAKE_KEEP") && std::system(("rm -r " + base).c_str()) != 0) return 6;
    if (status != 0) return 6;
    GUARD;
    compiled[text] = p->code;
    return 0;
}
BOTH(nvrtcGetProgramLogSize, hiprtcGetProgramLogSize, (void* program, std::size_t* size), (program, size)) {
    *size = static_cast<Program*>(program)->log.size() + 1;
    return 0;
}
BOTH(nvrtcGetProgramLog, hiprtcGetProgramLog, (void* program, char* log), (program, log)) {
    std::strcpy(log, static_cast<Program*>(program)->log.c_str());
    return 0;
}
BOTH(nvrtcGetCUBINSize, hiprtcGetCodeSize, (void* program, std::size_t* size), (program, size)) {
    *size = static_cast<Program*>(program)->code.size();
    return 0;
}
BOTH(nvrtcGetCUBIN, hiprtcGetCode, (void* program, char* code), (program, code)) {
    const std::string& made = static_cast<Program*>(program)->code;
    std::memcpy(code, made.data(), made.size());
    return 0;
}
BOTH(nvrtcDestroyProgram, hiprtcDestroyProgram, (void** program), (program)) {
    delete static_cast<Program*>(*program);
    *program = nullptr;
    return 0;
}
