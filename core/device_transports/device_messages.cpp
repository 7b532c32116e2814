#include "device_transports/device_messages.hpp"
#include "device/gpu_compiler.hpp"
#include "settings/counted.hpp"
#include "settings/notice.hpp"
#include "settings/settings.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

namespace jali {

namespace {

template <std::size_t size>
void put(char (&to)[size], const std::string& text) {
    text.copy(to, size - 1);
}

std::string rank_text(int rank) {
    return "rank " + std::to_string(rank);
}

template <class Pointer>
Pointer required(Pointer pointer, const char* what) {
    if (pointer == nullptr) throw MessageError(std::string(what) + " is null");
    return pointer;
}

void refuse_null(std::span<DeviceMessage* const> messages) {
    for (const DeviceMessage* m : messages) required(m, "a message");
}

} // namespace

// ---- what messages share -------------------------------------------------------------------------------

DeviceMessages::DeviceMessages(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator) {
    required(gpu.get(), "the device of messages");
    required(communicator.get(), "the communicator of messages")->barrier("setting up device messages");
    auto control = communicator->duplicate(), data = communicator->duplicate();
    ranks_ = {std::move(gpu), std::move(communicator), std::move(control), std::move(data),
              [this] { return channels_ = (channels_ + 1) % (ranks_.data->largest_tag() + 1); }};
    beside_.emplace(ranks_.gpu);
    for (std::size_t k = 0; k < message_transport_count; ++k) {
        const MessageTransport* transport = message_transports()[k];
        entries_.push_back({name_of(*transport, &ranks_.gpu->vendor()), transport, nullptr, k, ""});
    }
    if (const std::string& name = settings().message_transport; !name.empty()) for_all_ = &entry_named(name);
    const std::string no_kernels = first_reported(*ranks_.control, GpuCompiler::why_not(ranks_.gpu->vendor()),
                                                  "setting up device messages");
    bool all_reached = false; // by entries in front
    for (std::size_t k = 0; k < message_transport_count; ++k) {
        TransportEntry& entry = entries_[k];
        const MessageTransport& transport = *entry.transport;
        const auto same =
            std::find_if(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(k),
                         [&](const TransportEntry& r) { return r.transport->make == transport.make; });
        entry.first = static_cast<std::size_t>(same - entries_.begin());
        if (entry.first < k) {
            entry.connection = same->connection;
            entry.why_no_transport = same->why_no_transport;
            continue;
        }
        if (transport.rules.costly && all_reached && for_all_ != &entry)
            entry.why_no_transport =
                "devices reach each other's memory; jali.tune.experiment(message_transport='" + entry.name +
                "') on all ranks makes it";
        else if (!transport.traits.maps_memory && !transport.rules.to_oneself) // the others decide rank by
                                                                               // rank
            entry.why_no_transport = transport.why_not(ranks_.gpu, *ranks_.communicator);
        else if (transport.traits.maps_memory) // a transport that writes to peers' memory signals by kernels
            entry.why_no_transport = no_kernels;
        if (!entry.why_no_transport.empty()) continue;
        entry.connection = connections_.emplace_back(transport.make(ranks_)).get();
        all_reached = all_reached || (!transport.rules.to_oneself && entry.connection->reaches_all());
    }
}

const DeviceMessages::TransportEntry& DeviceMessages::entry_named(const std::string& name) const {
    std::string known;
    for (const TransportEntry& entry : entries_) {
        if (entry.transport->rules.to_oneself) continue;
        if (entry.name == name) return entry;
        known += (known.empty() ? "" : ", ") + entry.name;
    }
    throw MessageError("transport=" + name + ": transports of a message on " + ranks_.gpu->kind() +
                       " devices are " + known);
}

std::string DeviceMessages::why_not(const TransportEntry& entry, int peer) const {
    if (entry.transport->rules.to_oneself != (peer == rank())) return "it is for other ranks";
    return entry.connection == nullptr ? entry.why_no_transport : entry.connection->why_not(peer);
}

// The named entry, or the first possible one that takes so many bytes.
const DeviceMessages::TransportEntry&
DeviceMessages::choose(const MessageArray& array, const TransportEntry* named, std::string& why) const {
    if (array.peer == rank()) {
        why = "to oneself";
        return entries_[0];
    }
    if (const TransportEntry* entry = named != nullptr ? named : for_all_; entry != nullptr) {
        if (const std::string closed = why_not(*entry, array.peer); !closed.empty())
            throw GpuError("messages of " + rank_text(rank()) + " with " + rank_text(array.peer) +
                           " cannot go by '" + entry->name + "': " + closed);
        why = named != nullptr ? "it was named" : "message_transport";
        return *entry;
    }
    std::string closed, size;
    for (const TransportEntry& entry : entries_) {
        if (entry.transport->rules.to_oneself) continue;
        if (const std::string reason = why_not(entry, array.peer); !reason.empty()) {
            if (closed.find(reason) == std::string::npos) closed += (closed.empty() ? "" : "; ") + reason;
            continue;
        }
        if (entry.transport->rules.most_bytes != std::numeric_limits<std::size_t>::max() && size.empty())
            size = std::to_string(array.bytes) + " bytes, and '" + entry.name + "' is for up to " +
                   std::to_string(entry.transport->rules.most_bytes) + " bytes";
        if (array.bytes > entry.transport->rules.most_bytes) continue;
        why = size.empty() ? closed : size;
        if (!closed.empty() && rank() < array.peer) // one of the two reports it
            report_once("messages between devices go by way of '" + entry.name + "', since " + closed);
        return entry;
    }
    throw GpuError("messages of " + rank_text(rank()) + " with " + rank_text(array.peer) +
                   " cannot go at all: " + closed);
}

// ---- matching of two ends ------------------------------------------------------------------------------

std::shared_ptr<DeviceMessages::Half> DeviceMessages::introduce(int peer, const Announcement& announcement) {
    if (peer == rank()) {
        deliver(peer, announcement);
    } else {
        Communicator& control = *ranks_.control;
        while (!announcing_.empty() && control.test(*announcing_.front().request)) announcing_.pop_front();
        auto& sent = announcing_.emplace_back(std::make_unique<Announcement>(announcement));
        sent.request = control.send(sent.announcement.get(), sizeof announcement, peer, 0);
        auto& incoming = expected_[peer].emplace_back(std::make_unique<Announcement>());
        incoming.request = control.receive(incoming.announcement.get(), sizeof announcement, peer, 0);
    }
    auto half = std::make_shared<Half>();
    const std::tuple key(peer, announcement.sends == 0, announcement.tag);
    Meeting& meeting = meetings_[key];
    if (meeting.early.empty()) {
        meeting.waiting.push_back(half);
        return half;
    }
    half->other = meeting.early.front();
    meeting.early.pop_front();
    if (meeting.early.empty()) meetings_.erase(key);
    return half;
}

void DeviceMessages::deliver(int peer, const Announcement& announcement) {
    const std::tuple key(peer, announcement.sends != 0, announcement.tag);
    Meeting& meeting = meetings_[key];
    if (meeting.waiting.empty()) {
        meeting.early.push_back(announcement);
        return;
    }
    meeting.waiting.front()->other = announcement;
    meeting.waiting.pop_front();
    if (meeting.waiting.empty()) meetings_.erase(key);
}

// Waits for it.
const DeviceMessages::Announcement& DeviceMessages::announcement_for(const DeviceMessage& message) {
    const int peer = message.array_.peer;
    std::deque<UnderWay>& expected = expected_[peer];
    while (!message.half_->other) {
        if (expected.empty())
            throw MessageError(message.describe() +
                               " has no other end on this rank; make both before the first of them starts");
        ranks_.control->wait(std::span(&expected.front().request, 1),
                             std::string("the persistent_") + (message.array_.sends ? "receive" : "send") +
                                 " of " + rank_text(peer) + " with tag " +
                                 std::to_string(message.array_.tag));
        const UnderWay incoming = std::move(expected.front());
        expected.pop_front();
        deliver(peer, *incoming.announcement);
    }
    return *message.half_->other;
}

DeviceMessage::DeviceMessage(std::shared_ptr<DeviceMessages> all, const MessageArray& array,
                             const std::string& element, const std::string& shape,
                             const std::string& transport_name, void* owner_stream)
    : all_(required(std::move(all), "what a message shares with others, DeviceMessages,")), array_(array),
      element_(element), shape_(shape.substr(0, 79)),
      named_(transport_name.empty() ? nullptr : &all_->entry_named(transport_name)),
      owner_stream_(owner_stream), number_(++all_->made_) {
    if (array_.peer < 0 || array_.peer >= all_->size())
        throw MessageError(rank_text(array_.peer) + " does not exist among " + counted(all_->size(), "rank"));
    if (array_.address == 0 && array_.bytes > 0)
        throw MessageError("an array of " + std::to_string(array_.bytes) + " bytes that is to go " +
                           (array_.sends ? "to " : "from ") + rank_text(array_.peer) + " has no address");
    std::exception_ptr trouble;
    DeviceMessages::Announcement announcement{};
    try {
        entry_ = &all_->choose(array_, named_, why_);
        ends_ = make_ends();
    } catch (const GpuError& error) {
        put(announcement.trouble, error.what());
        trouble = std::current_exception();
    } catch (const OutOfMemory& error) {
        put(announcement.trouble, error.what());
        trouble = std::current_exception();
    }
    const auto number = [&](const DeviceMessages::TransportEntry* entry) {
        return entry == nullptr ? -1 : static_cast<std::int32_t>(entry - all_->entries_.data());
    };
    announcement.tag = array_.tag;
    announcement.bytes = static_cast<std::int64_t>(array_.bytes);
    announcement.address = array_.address;
    announcement.sends = array_.sends;
    announcement.entry = number(entry_);
    announcement.named = number(named_);
    put(announcement.element, element_);
    put(announcement.shape, shape_);
    put(announcement.why, why_);
    for (std::size_t k = 0; k < message_transport_count && !trouble; ++k) {
        const auto text = ends_[k] ? ends_[k]->announcement() : std::vector<std::byte>();
        if (text.size() > MessageEnd::most_announced)
            throw std::length_error("an end of a message by '" + all_->entries_[k].name +
                                    "' announces too much");
        announcement.by_entry[k].bytes = static_cast<std::int32_t>(text.size());
        std::ranges::copy(text, announcement.by_entry[k].text);
    }
    half_ = all_->introduce(array_.peer, announcement);
    if (trouble) std::rethrow_exception(trouble);
}

// A sender makes the end of its chosen entry; a receiver makes one for every possible entry.
DeviceMessage::Ends DeviceMessage::make_ends() {
    Ends ends;
    for (const DeviceMessages::TransportEntry& entry : all_->entries_)
        if (!ends[entry.first] && all_->why_not(entry, array_.peer).empty() &&
            (!array_.sends || entry.first == entry_->first))
            ends[entry.first] = entry.connection->make(array_);
    return ends;
}

void DeviceMessage::meet() {
    if (has_met()) return;
    const DeviceMessages::Announcement& other = all_->announcement_for(*this);
    if (other.trouble[0] != '\0')
        throw GpuError(rank_text(array_.peer) + " cannot make its end of a message: " + other.trouble);
    const auto described = [](int rank, std::int64_t bytes, const std::string& shape,
                              const std::string& element) {
        return rank_text(rank) + "'s array of " + std::to_string(bytes) + " bytes (shape " + shape + ", " +
               element + ")";
    };
    const std::string with_tag = "a message with tag " + std::to_string(array_.tag);
    const auto bytes = static_cast<std::int64_t>(array_.bytes);
    if (bytes != other.bytes || element_ != other.element) {
        std::string here = described(all_->rank(), bytes, shape_, element_);
        std::string there = described(array_.peer, other.bytes, other.shape, other.element);
        if (!array_.sends) std::swap(here, there);
        throw MessageError(with_tag + ": " + here + " sends, but " + there +
                           " receives; make the arrays alike");
    }
    const auto entry_of = [&](std::int32_t number) { return number < 0 ? nullptr : &all_->entries_[number]; };
    const DeviceMessages::TransportEntry* const taken = array_.sends ? entry_ : entry_of(other.entry);
    const DeviceMessages::TransportEntry* const wanted = array_.sends ? entry_of(other.named) : named_;
    if (wanted != nullptr && wanted->first != taken->first && !taken->transport->rules.to_oneself)
        throw MessageError(with_tag + " goes by '" + taken->name + "' at its sender, and by '" +
                           wanted->name +
                           "' at its receiver; name the same on both sides, or none at the receiver");
    const auto& text = other.by_entry[taken->first];
    std::unique_ptr<MessageEnd>& end = ends_[taken->first];
    if (!end)
        throw GpuError(with_tag + " goes by '" + taken->name +
                       "' at its sender, but not here: " + all_->why_not(*taken, array_.peer));
    end->meet(std::span(text.text, static_cast<std::size_t>(text.bytes)), *taken->transport);
    if (!array_.sends) {
        entry_ = taken;
        why_ = other.why;
    }
    sent_from_ = array_.sends ? array_.address : other.address;
    end_ = std::move(end);
    ends_ = {};
    half_.reset();
}

const MessageEnd& DeviceMessage::end() const {
    if (!has_met()) throw MessageError(describe() + " has not met its other end; call meet() first");
    return *end_;
}

void DeviceMessage::copy_alone(void* stream) const {
    if (!end().copy_alone(stream))
        throw MessageError(describe() + " is none that is put into the memory of a peer");
}

std::string DeviceMessage::describe() const {
    return "<message " + std::string(array_.sends ? "to " : "from ") + rank_text(array_.peer) + ", tag " +
           std::to_string(array_.tag) + ", " + std::to_string(array_.bytes) + " bytes, " + entry_->name +
           ": " + why_ + ">";
}

// ---- starts --------------------------------------------------------------------------------------------

template <class F>
void DeviceMessages::for_each_connection(std::span<DeviceMessage* const> messages, F f) {
    std::array<std::vector<MessageEnd*>, message_transport_count> ends; // by the first entry of the transport
    for (DeviceMessage* m : messages) {
        m->meet();
        ends[m->entry_->first].push_back(m->end_.get());
    }
    for (std::size_t k = 0; k < message_transport_count; ++k)
        if (!ends[k].empty()) f(entries_[k], MessageConnection::Ends(ends[k]));
}

void DeviceMessages::warm_up(std::span<DeviceMessage* const> messages) {
    refuse_null(messages);
    for_each_connection(messages, [&](const TransportEntry& entry, MessageConnection::Ends ends) {
        entry.connection->warm_up(ends, ranks_.gpu->stream());
    });
    if (std::ranges::all_of(messages, [](const auto* m) { return m->transport().traits.recordable; }))
        prove_once(messages, std::nullopt);
}

StreamProgram& DeviceMessages::program_of(std::span<DeviceMessage* const> messages) {
    numbers_.clear();
    for (const DeviceMessage* m : messages) numbers_.push_back(m->number_);
    const auto known = std::ranges::find(programs_, numbers_, &Start::messages);
    if (known != programs_.end()) {
        programs_.splice(programs_.begin(), programs_, known);
        return *programs_.front().program;
    }
    auto program = std::make_unique<StreamProgram>(ranks_.gpu);
    for (const bool by_host : {true, false}) // the host first, so that it does not wait for the others' work
                                             // on the stream
        for_each_connection(messages, [&](const TransportEntry& entry, MessageConnection::Ends ends) {
            if (entry.transport->traits.host_waits == by_host) entry.connection->begin(*program, ends);
        });
    for_each_connection(messages, [&](const TransportEntry& entry, MessageConnection::Ends ends) {
        entry.connection->end(*program, ends);
    });
    programs_.push_front({numbers_, std::move(program)});
    if (programs_.size() > most_programs) programs_.pop_back();
    return *programs_.front().program;
}

std::string DeviceMessages::describe(std::span<DeviceMessage* const> messages) {
    refuse_null(messages);
    return program_of(messages).describe();
}

void DeviceMessages::start(std::span<DeviceMessage* const> messages, std::optional<void*> theirs) {
    refuse_null(messages);
    prove_once(messages, theirs);
    put(messages, theirs);
}

void DeviceMessages::put(std::span<DeviceMessage* const> messages, std::optional<void*> theirs) {
    Gpu& gpu = *ranks_.gpu;
    void* const stream = theirs ? *theirs : gpu.stream();
    ++starts_;
    // In order with other users of the arrays; on a stream of the caller's the caller ensures it.
    std::vector<void*> owners;
    for (DeviceMessage* m : messages) {
        if (m->all_.get() != this)
            throw MessageError(m->describe() + " is of another communicator or device; start those together");
        if (std::exchange(m->start_, starts_) == starts_)
            throw MessageError(
                "a message is started twice at once; start it again when this start is on its stream");
        m->meet();
        if (!m->transport().traits.recordable && gpu.is_capturing(stream))
            throw GpuError("messages that go by '" + m->transport_name() +
                           "' take the host, so that they cannot be recorded in a graph");
        if (!theirs && m->owner_stream_ != stream &&
            std::ranges::find(owners, m->owner_stream_) == owners.end())
            owners.push_back(m->owner_stream_);
    }
    StreamProgram& program = program_of(messages);
    gpu.refuse_if_aborted();
    const CurrentGpu current(gpu);
    if (!owners.empty() && gpu.is_capturing(stream)) owners.clear(); // as is a graph
    for (void* owner : owners) gpu.wait_for(owner);
    try {
        program.run(std::array{stream, beside_->handle()});
    } catch (...) {
        for (const auto& connection : connections_) connection->give_up();
        throw;
    }
    for (void* owner : owners) gpu.let_wait(owner);
}

} // namespace jali
