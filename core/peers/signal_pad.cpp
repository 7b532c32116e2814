#include "peers/signal_pad.hpp"

#include <iterator>
#include <map>
#include <mutex>
#include <utility>

namespace jali {

namespace {

constexpr std::int64_t page = 4096;

std::int64_t whole_pages(std::size_t bytes) {
    return (static_cast<std::int64_t>(bytes) + page - 1) / page * page;
}

// The pads of this process, by where the memory of each begins.
struct Pads {
    std::mutex mutex;
    std::map<GpuAddress, const SignalPad*> all;
    static Pads& get() {
        static auto* pads = new Pads; // never destroyed: pads may be destroyed late
        return *pads;
    }
};

} // namespace

SignalPad::SignalPad(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator,
                     std::vector<SignalWords> rows, std::size_t bytes, std::int64_t epochs,
                     std::string waiting, std::string_view label, SymmetricBuffer::Reach reach)
    : buffer_(gpu, communicator, reach), rows_(std::move(rows)), offsets_{0},
      watch_(gpu, communicator, std::move(waiting),
             [this](const SignalReport& report) { return described(report); }) {
    for (const SignalWords& row : rows_)
        offsets_.push_back(offsets_.back() + whole_pages(static_cast<std::size_t>(row.count) * row.stride));
    epochs_ = gpu->allocate(static_cast<std::size_t>(epochs) * sizeof(std::int64_t), "epochs");
    gpu->fill(epochs_.address(), 0, epochs_.size());
    const auto words = static_cast<std::size_t>(offsets_.back());
    buffer_.allocate(words + bytes, words, label);
    Pads& pads = Pads::get();
    std::lock_guard lock(pads.mutex);
    pads.all[buffer_.mine()] = this;
}

SignalPad::~SignalPad() {
    Pads& pads = Pads::get();
    std::lock_guard lock(pads.mutex);
    pads.all.erase(buffer_.mine());
}

SignalPad::PadPosition SignalPad::position_of(GpuAddress address) const {
    const auto at = static_cast<std::int64_t>(address - buffer_.mine());
    for (std::size_t row = 0; address >= buffer_.mine() && row < rows_.size(); ++row)
        if (const std::int64_t number = (at - offsets_[row]) / static_cast<std::int64_t>(rows_[row].stride);
            at >= offsets_[row] && at < offsets_[row + 1] && number < rows_[row].count)
            return {static_cast<int>(row), number};
    return {-1, 0};
}

int SignalPad::writer_of(GpuAddress address) {
    Pads& pads = Pads::get();
    std::lock_guard lock(pads.mutex);
    const auto after = pads.all.upper_bound(address);
    if (after == pads.all.begin()) return -1;
    const SignalPad& pad = *std::prev(after)->second;
    const auto [row, number] = pad.position_of(address);
    return row < 0 ? -1 : pad.rows_[row].writer(number);
}

// "waits for exchange 7 of rank 3, in 'await_halos'"
std::string SignalPad::described(const SignalReport& report) const {
    const auto [row, number] = position_of(report.word);
    if (row < 0) return "";
    const SignalWords& words = rows_[row];
    const std::string rank = "rank " + std::to_string(words.writer(number));
    const std::string epoch = std::to_string(report.epoch);
    return "waits for " +
           (words.kind == SignalWords::data
                ? words.what + " " + epoch + " of " + rank
                : rank + " to give credit " + epoch + " for " + words.what + "s") +
           ", in '" + report.kernel + "'";
}

} // namespace jali
