#include "halo/launch_trial.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace jali {

LaunchTrial::LaunchTrial(Launch& launch) : launch_(launch) {
    const auto& d = launch_.definition_;
    Gpu* gpu = d.layout->gpu().get();
    launch_.prepare(); // memory that grows now need not be copied later
    for (const auto& [field, parities] : d.writes) {
        auto same = [&](const Saved& s) { return s.field == field.get(); };
        if (std::any_of(saved_.begin(), saved_.end(), same)) continue;
        Saved saved{field.get(), {}, {}};
        const std::size_t bytes = field->owned_bytes();
        if (gpu != nullptr) {
            saved.there = gpu->allocate(bytes, "fields as they were before tuning");
            gpu->copy(saved.there.address(), field->owned_address(), bytes);
        } else {
            saved.here = Arena::host().allocate(bytes, "fields as they were before tuning");
            std::memcpy(saved.here.data(), field->owned_data(), bytes);
        }
        saved_.push_back(std::move(saved));
    }
    for (LaunchCounters* counters : launch_.all_counters())
        counters_.emplace_back(counters, counters->values());
    for (const auto& request : launch_.requests_) {
        for (int parity = 0; parity < 2; ++parity) {
            const bool read = request.parities >> parity & 1;
            stale_.push_back(read && request.field->stale(request.slab, parity));
            held_.push_back(
                {request.field.get(), request.slab, parity, request.field->held(request.slab, parity)});
        }
    }
    for (FieldStorage* field : launch_.touched_) counted_.push_back(field->counters);
    counted_in_layout_ = d.layout->counters;
}

LaunchTrial::~LaunchTrial() {
    try {
        finish();
    } catch (...) {
        return; // the device is lost and has reported it
    }
}

void LaunchTrial::make_stale() {
    for (const Held& held : held_) held.field->set_held(held.slab, held.parity, held.version);
}

void LaunchTrial::restore() {
    const auto& d = launch_.definition_;
    Gpu* gpu = d.layout->gpu().get();
    make_stale();
    for (const Saved& saved : saved_) {
        if (gpu != nullptr) {
            gpu->copy(saved.field->owned_address(), saved.there.address(), saved.there.size());
        } else {
            std::memcpy(saved.field->owned_data(), saved.here.data(), saved.field->owned_bytes());
        }
    }
    for (const auto& [counters, values] : counters_) counters->set(values);
    for (std::size_t k = 0; k < counted_.size(); ++k) launch_.touched_[k]->counters = counted_[k];
    const HaloCounters& now = d.layout->counters;
    count_in_process({counted_in_layout_.exchanged - now.exchanged, counted_in_layout_.avoided - now.avoided,
                      counted_in_layout_.messages - now.messages, counted_in_layout_.bytes - now.bytes});
    d.layout->counters = counted_in_layout_;
}

std::vector<double> LaunchTrial::kernel(int repetitions) {
    restore();
    launch_.prepare();
    launch_.compute();
    return launch_.time(repetitions, [&] { launch_.compute(); });
}

void LaunchTrial::prepare_exchange() {
    launch_.prepare_exchange(stale_);
}

std::vector<double> LaunchTrial::exchange(int series, int runs) {
    const auto& d = launch_.definition_;
    Gpu* gpu = d.layout->gpu().get();
    restore();
    launch_.prepare();
    auto once = [&] {
        make_stale();
        launch_.compute_between(stale_);
    };
    once();
    std::vector<double> seconds;
    for (int s = 0; s < series; ++s) {
        if (gpu != nullptr) gpu->synchronize();
        d.communicator->barrier("a measurement of halos");
        const auto start = std::chrono::steady_clock::now();
        for (int run = 0; run < runs; ++run) once();
        if (gpu != nullptr) gpu->synchronize();
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                          runs);
    }
    return seconds;
}

RecordedCalls LaunchTrial::record(bool in_graph) {
    const auto& d = launch_.definition_;
    const std::shared_ptr<Gpu>& gpu = d.layout->gpu();
    if (gpu == nullptr) throw LayoutError("launch: calls are recorded on a device, not on the host");
    RecordedCalls recorded;
    const auto subject = std::make_shared<RecordedLaunch>();
    subject->definition = &d;
    subject->requests = launch_.requests();
    recorded.subject = subject;
    if (subject->requests.empty()) return recorded;
    const std::vector<char> all = Launch::all_of(launch_.requests_);
    const auto once = [&] {
        for (auto& halos : launch_.indirect_) {
            halos.stale = Launch::all_of(halos.requests);
            launch_.exchange_indirect(halos);
        }
        if (all.empty()) {
            launch_.compute();
        } else {
            launch_.compute_between(all);
        }
    };
    restore();
    launch_.prepare();
    if (in_graph) {
        once(); // objects made at the first run are no part of a graph
        GpuGraph graph(gpu, gpu->stream(), once);
        record_runs(recorded, gpu, *d.communicator, [&] { graph.launch(gpu->stream()); });
        gpu->synchronize();
    } else {
        record_runs(recorded, gpu, *d.communicator, once);
    }
    for (Held& held : held_) held.version = 0;
    for (const auto& halos : launch_.indirect_)
        for (const HaloRequest& request : halos.requests)
            for (int parity = 0; parity < 2; ++parity) request.field->set_held(request.slab, parity, 0);
    return recorded;
}

void LaunchTrial::finish() {
    if (finished_) return;
    finished_ = true;
    restore();
    for (FieldStorage* field : launch_.touched_) field->let_owner_go_on();
}

} // namespace jali
