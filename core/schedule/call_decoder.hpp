// Recorded calls as events: streams, events, copies, messages and words, families of kernels make the events
// of their launches.
#pragma once

#include "schedule/recorded_calls.hpp"

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace jali {

class CallDecoder {
  public:
    explicit CallDecoder(RecordedCalls& recorded);
    RankEvents run(); // all calls

    // For families of kernels:

    int rank() const { return ordered_events_.rank; }
    int runs() const { return run_; } // the number of this run
    RankEvents& events() { return ordered_events_; }
    OrderedEvent& at(int ordered_event) {
        return ordered_events_.events[static_cast<std::size_t>(ordered_event)];
    }

    // An event after others of this rank.
    int add(std::string name, std::vector<std::int32_t> after);
    // On a stream: after the work on it, the events it waits for, and all that the host has waited for; later
    // work on the stream follows it.
    int begin(std::string name, void* stream);
    int end(std::string name, void* stream, std::vector<std::int32_t> after);

    // So many blocks of the launch that is being decoded may wait though its others have not begun.
    void wait_ahead(std::int64_t blocks) { ahead_ = blocks; }

    Stretch stretch(std::uint64_t address, std::uint64_t bytes);
    // Memory with a purpose of its own, in a block or external: an access that begins in it must end in it.
    void part_of_memory(std::uint64_t address, std::uint64_t bytes, const std::string& name);
    int footprint(std::vector<Stretch> all);
    void reads(int ordered_event, std::vector<Stretch> all) {
        at(ordered_event).reads.push_back(footprint(std::move(all)));
    }
    void writes(int ordered_event, std::vector<Stretch> all) {
        at(ordered_event).writes.push_back(footprint(std::move(all)));
    }
    void touch(int ordered_event, const Stretch& to, const Stretch& from); // reads, writes, moves

    template <class Entry>
    std::vector<Entry> entries(GpuAddress address, std::int64_t count) {
        std::vector<Entry> found(static_cast<std::size_t>(count));
        if (count > 0)
            std::memcpy(static_cast<void*>(found.data()),
                        memory_.at(address, found.size() * sizeof(Entry)).data(),
                        found.size() * sizeof(Entry));
        return found;
    }
    template <class Arguments>
    static Arguments arguments_of(const DriverCall& call) {
        Arguments arguments;
        check_size(call, sizeof arguments);
        std::memcpy(static_cast<void*>(&arguments), call.arguments.data(), sizeof arguments);
        return arguments;
    }
    static std::vector<std::uint64_t> numbers_of(const DriverCall& call);

    // A count in this rank's device memory, as left by earlier kernels; they are ordered like any others that
    // touch the same memory.
    std::int64_t& count_at(GpuAddress address);
    std::int64_t read_count(int ordered_event, GpuAddress address);
    void set_count(int ordered_event, GpuAddress address, std::int64_t value);

    void wait(int ordered_event, GpuAddress word, std::int64_t value);
    void signal(int ordered_event, GpuAddress word, std::int64_t value);
    // Of a word that holds `first` when the recording begins.
    void wait(int ordered_event, GpuAddress word, std::int64_t value, std::int64_t first, bool exactly);

  private:
    using After = std::vector<std::int32_t>; // events
    static void check_size(const DriverCall& call, std::size_t bytes);
    int of_host(std::string name, std::vector<std::int32_t> after);
    void decode(const DriverCall& call);
    void launch(const DriverCall& call);
    void transfer(const DriverCall& call, bool sends, int channel, int opened);
    void close(int channel, int closed);
    After& after(void* stream) { return streams_.try_emplace(stream, root_).first->second; }
    void begin_graph(const DriverCall& call);
    void end_graph(const DriverCall& call);
    void mark(const DriverCall& call);

    void touch_word(int ordered_event, GpuAddress word) {
        at(ordered_event).words.push_back(footprint({stretch(word, sizeof(std::int64_t))}));
    }

    RecordedCalls& recorded_;
    SeenMemory& memory_;
    std::uint64_t here_; // the space of this process
    RankEvents ordered_events_;
    std::vector<std::unique_ptr<KernelFamily>> families_;
    int run_ = -1, group_ = -1;
    std::int64_t ahead_ = 0;
    std::map<void*, After> streams_, events_; // their successors follow these events
    // While a graph runs, its streams and events are its own; events without a predecessor in it follow its
    // root.
    After root_;
    std::map<void*, After> streams_outside_, events_outside_;
    std::vector<std::int32_t> host_, transfers_;
    std::map<GpuAddress, std::int64_t> counts_;
    std::set<std::pair<std::uint64_t, std::uint64_t>> known_; // words
    std::set<std::uint64_t> listed_;                          // blocks
};

// That of messages between devices (transports/mapped_messages).
std::unique_ptr<KernelFamily> family_of_messages(CallDecoder& decoder);

} // namespace jali
