#include "messaging/failure_detector.hpp"

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open // headers older than Linux 5.3; the number is that of all architectures
#define SYS_pidfd_open 434
#endif

namespace jali {

namespace {

constexpr auto between_calls = std::chrono::milliseconds(250);

// Field 22 of its line in /proc, counted from behind the name, which may hold anything; 0 if there is none.
std::int64_t start_of(std::int64_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string line, field;
    std::getline(file, line);
    const std::size_t name_end = line.rfind(')');
    if (name_end == std::string::npos) return 0;
    std::istringstream fields(line.substr(name_end + 1));
    for (int k = 3; k < 22; ++k) fields >> field;
    std::int64_t start = 0;
    fields >> start;
    return start;
}

} // namespace

ProcessToken ProcessToken::of_this_process() {
    ProcessToken token{};
    token.number = getpid();
    token.started = start_of(token.number);
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    boot.copy(token.boot, sizeof token.boot - 1);
    if (readlink("/proc/self/ns/pid", token.numbering, sizeof token.numbering - 1) < 0) token.started = 0;
    return token;
}

FailureDetector::~FailureDetector() {
    for (const pollfd& process : processes_) close(process.fd);
}

void FailureDetector::enlist(int rank, const ProcessToken& process) {
    static const ProcessToken mine = ProcessToken::of_this_process();
    if (process.started == 0 || std::strcmp(process.boot, mine.boot) != 0 ||
        std::strcmp(process.numbering, mine.numbering) != 0)
        return;
    const auto held = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process.number), 0));
    if (held < 0) return; // an older kernel, a sandbox, no descriptors left
    if (start_of(process.number) != process.started) {
        close(held);
        return;
    }
    processes_.push_back({held, POLLIN, 0});
    listed_.push_back({rank, 0});
}

void FailureDetector::forget(int rank) {
    for (std::size_t k = 0; k < listed_.size(); ++k) {
        if (listed_[k].rank != rank) continue;
        close(processes_[k].fd);
        processes_.erase(processes_.begin() + static_cast<std::ptrdiff_t>(k));
        listed_.erase(listed_.begin() + static_cast<std::ptrdiff_t>(k));
        return;
    }
}

std::vector<FailureDetector::Missing> FailureDetector::call() {
    std::vector<Missing> missing;
    const auto now = std::chrono::steady_clock::now();
    if (processes_.empty() || now - last_ < between_calls) return missing;
    last_ = now;
    if (poll(processes_.data(), processes_.size(), 0) <= 0) return missing;
    for (std::size_t k = 0; k < processes_.size(); ++k) {
        if (!(processes_[k].revents & POLLIN)) continue;
        ++listed_[k].calls;
        missing.push_back(listed_[k]);
    }
    return missing;
}

} // namespace jali
