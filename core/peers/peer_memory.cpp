#include "peers/peer_memory.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include <unistd.h>

namespace jali {

namespace {

void write_text(std::span<char> to, const std::string& text) {
    std::strncpy(to.data(), text.c_str(), to.size() - 1);
}

MemoryHandle own_handle(const Gpu& gpu) {
    MemoryHandle handle{};
    handle.process = getpid();
    handle.ordinal = gpu.ordinal();
    gethostname(handle.host, sizeof handle.host - 1);
    write_text(handle.device, gpu.identity());
    return handle;
}

std::uint64_t space_of(const char* host, std::int64_t process) { // FNV-1a
    std::uint64_t hash = 0xcbf29ce484222325u;
    const auto mix = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3u; };
    for (; *host != '\0'; ++host) mix(static_cast<unsigned char>(*host));
    for (int k = 0; k < 8; ++k) mix(static_cast<unsigned char>(process >> 8 * k));
    return hash;
}

// Memory of other processes that this one has mapped, by where it begins here.
struct ForeignMemory {
    std::uint64_t end = 0, space = 0, address = 0;
    int mappings = 0;
};
struct ForeignMemories {
    std::mutex mutex;
    std::map<std::uint64_t, ForeignMemory> all;
    static ForeignMemories& get() {
        static auto* memories = new ForeignMemories; // never destroyed: mappings may be closed late
        return *memories;
    }
};

constexpr unsigned lazy_peer_access = 1; // the flag of the drivers' IPC functions
constexpr int pointer_range_start = 11;  // attribute of an address, in both drivers

} // namespace

MemoryName name_of_memory(std::uint64_t address) {
    static const std::uint64_t here = [] {
        char host[64] = {};
        gethostname(host, sizeof host - 1);
        return space_of(host, getpid());
    }();
    ForeignMemories& foreign = ForeignMemories::get();
    std::lock_guard lock(foreign.mutex);
    const auto after = foreign.all.upper_bound(address);
    if (after != foreign.all.begin()) {
        const auto& [begin, memory] = *std::prev(after);
        if (address < memory.end) return {memory.space, memory.address + (address - begin)};
    }
    return {here, address};
}

std::size_t largest_on_ranks(Communicator& communicator, std::size_t mine) {
    const auto all = gather_values(communicator, mine, "device memory of ranks");
    return *std::max_element(all.begin(), all.end());
}

RankDevices::RankDevices(const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
    const MemoryHandle mine = own_handle(*gpu);
    const auto handles = gather_values(communicator, mine, "device memory of ranks");
    crowd_ = crowded(*gpu, communicator);
    for (int r = 0; r < communicator.size(); ++r) {
        const MemoryHandle& other = handles[r];
        const bool same_host = std::strcmp(other.host, mine.host) == 0;
        same_process_.push_back(same_host && other.process == mine.process);
        Obstacle obstacle = none;
        if (r != communicator.rank()) {
            int can = 1;
            if (!same_host) {
                obstacle = other_host;
            } else if (!crowd_.empty()) {
                obstacle = same_device;
            } else if (std::strcmp(other.device, mine.device) == 0) {
                // ranks that share a stream would wait for work that is behind them on it
                if (same_process_[r]) obstacle = same_device;
            } else if (same_process_[r]) {
                gpu->api().check(
                    gpu->api().can_access_peer(&can, gpu->ordinal(), static_cast<int>(other.ordinal)),
                    "asking for peer access");
                if (can == 0) obstacle = no_access;
            }
        }
        obstacles_.push_back(obstacle);
        for (int before = 0; before < r && shared_.empty(); ++before)
            if (std::strcmp(handles[before].host, other.host) == 0 &&
                std::strcmp(handles[before].device, other.device) == 0)
                shared_ = "ranks " + std::to_string(before) + " and " + std::to_string(r) + " use one GPU (" +
                          other.device + ")";
    }
    if (shared_.empty()) shared_ = crowd_;
}

std::string RankDevices::crowded(const Gpu& gpu, Communicator& communicator) {
    if (communicator.size() == 1) return ""; // it waits for no other rank
    const int ranks = communicator.ranks_of_process(), devices = Gpu::count(gpu.vendor());
    std::string mine;
    if (ranks > devices)
        mine = std::to_string(ranks) + " ranks of one process share " + std::to_string(devices) +
               (devices == 1 ? " GPU" : " GPUs");
    return first_reported(communicator, mine, "device memory of ranks");
}

std::string RankDevices::shared_by(const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
    return RankDevices(gpu, communicator).shared();
}

// ---- exported memory and what is made of it
// -------------------------------------------------------------------

void HandleExporter::by_ipc(const Gpu& gpu, GpuAddress address, std::size_t bytes, std::string& trouble) {
    GpuAddress begin = 0;
    int error = gpu.api().pointer_attribute(&begin, pointer_range_start, address);
    if (error == gpu_success) error = gpu.api().ipc_export(&handle_.ipc, begin);
    if (error == gpu_success) {
        handle_.type = HandleType::ipc;
        handle_.offset = address - begin;
        handle_.bytes = handle_.offset + bytes;
    } else {
        trouble += "ipc: " + gpu.api().text_of(error);
    }
}

void HandleExporter::by_descriptor(const Gpu& gpu, GpuAddress address, std::size_t bytes, bool lasting,
                                   std::string& trouble) {
    static std::mutex mutex;
    try {
        GpuAddress begin = 0;
        if (const VirtualBlock* own = gpu.virtual_block(address)) {
            std::lock_guard lock(mutex);
            descriptors_ = own->exporter; // arrays that share a block share its descriptor
            if (!descriptors_) {
                std::vector<SharedPiece> pieces;
                pieces.push_back(export_virtual(gpu.api(), *own));
                descriptors_ = std::make_shared<FdExporter>(std::move(pieces));
                if (lasting) own->exporter = descriptors_;
            }
            begin = own->address;
            handle_.bytes = own->bytes;
        } else {
            auto pieces = export_foreign(gpu.api(), address, bytes, begin);
            handle_.bytes = 0;
            for (const SharedPiece& piece : pieces) handle_.bytes += piece.bytes;
            descriptors_ = std::make_shared<FdExporter>(std::move(pieces));
        }
        handle_.type = HandleType::descriptor;
        handle_.offset = address - begin;
        handle_.token = descriptors_->token();
    } catch (const std::runtime_error& error) { // the driver's or the socket's
        trouble += std::string(trouble.empty() ? "" : "; ") + "virtual: " + error.what();
    }
}

HandleExporter::HandleExporter(Gpu& gpu, GpuAddress address, std::size_t bytes, bool lasting)
    : handle_(own_handle(gpu)) {
    handle_.address = address;
    if (address == 0) return;
    const CurrentGpu current(gpu);
    std::string trouble;
    const bool with_handle = gpu.virtual_block(address) != nullptr;
    if (!with_handle && gpu.allows(HandleType::ipc)) by_ipc(gpu, address, bytes, trouble);
    if (handle_.type == HandleType::none && (with_handle || gpu.allows(HandleType::descriptor)))
        by_descriptor(gpu, address, bytes, lasting, trouble);
    if (handle_.type == HandleType::none) write_text(handle_.why_not, trouble);
}

MappedMemory::MappedMemory(const std::shared_ptr<Gpu>& gpu, const MemoryHandle& handle) : gpu_(gpu) {
    if (handle.address == 0) return;
    const CurrentGpu current(*gpu_);
    if (handle.process == getpid()) {
        address_ = handle.address;
        if (handle.ordinal == gpu_->ordinal()) return;
        // the other device is open in this process too
        Gpu& peer = *Gpu::open(gpu_->vendor(), static_cast<int>(handle.ordinal));
        const int error = peer.let_reach(*gpu_);
        if (error != gpu_success && error != gpu_peer_enabled)
            throw GpuError("peer access: " + gpu_->api().text_of(error));
        if (handle.type == HandleType::descriptor) // of which each block has rights of its own
            let_use_virtual(gpu_->api(), gpu_->device(), handle.address - handle.offset, handle.bytes);
        return;
    }
    if (handle.type == HandleType::ipc) {
        const int error = gpu_->api().ipc_open(&opened_, handle.ipc, lazy_peer_access);
        if (error != gpu_success) {
            opened_ = 0;
            throw GpuError(gpu_->api().text_of(error));
        }
        address_ = opened_ + handle.offset;
    } else if (handle.type == HandleType::descriptor) {
        try {
            imported_ = import_virtual(gpu_->api(), gpu_->device(), fetch_descriptors(handle.token));
        } catch (const DescriptorError& error) {
            throw GpuError(error.what());
        }
        address_ = imported_.address + handle.offset;
    } else {
        throw GpuError(std::string("its driver does not export it (") + handle.why_not + ")");
    }
    ForeignMemories& foreign = ForeignMemories::get();
    std::lock_guard lock(foreign.mutex);
    ForeignMemory& memory = foreign.all[address_ - handle.offset];
    memory = {std::max(memory.end, address_ - handle.offset + handle.bytes),
              space_of(handle.host, handle.process), handle.address - handle.offset, memory.mappings + 1};
}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
    if (this != &other) {
        close();
        gpu_ = std::move(other.gpu_);
        address_ = std::exchange(other.address_, 0);
        opened_ = std::exchange(other.opened_, 0);
        imported_ = std::exchange(other.imported_, {});
    }
    return *this;
}

void MappedMemory::close() noexcept {
    if (opened_ == 0 && imported_.address == 0) return;
    {
        ForeignMemories& foreign = ForeignMemories::get();
        std::lock_guard lock(foreign.mutex);
        const auto found = foreign.all.find(opened_ != 0 ? opened_ : imported_.address);
        if (found != foreign.all.end() && --found->second.mappings == 0) foreign.all.erase(found);
    }
    try {
        const CurrentGpu current(*gpu_);
        if (opened_ != 0) gpu_->api().ipc_close(opened_);
        drop_imported(gpu_->api(), imported_);
    } catch (const GpuError&) { // the device is lost; other calls report it
    }
    address_ = opened_ = 0;
    imported_ = {};
}

PeerMapping::PeerMapping(const std::shared_ptr<Gpu>& gpu, Communicator& communicator, GpuAddress mine,
                         std::size_t bytes, const std::vector<char>& wanted, Missing missing)
    : why_not_(static_cast<std::size_t>(communicator.size())) {
    const HandleExporter exporter(*gpu, mine, bytes); // until all have mapped it
    const auto handles = gather_values(communicator, exporter.handle(), "device memory of ranks");
    std::string trouble;
    for (int r = 0; r < communicator.size(); ++r) {
        mapped_.emplace_back();
        if (!wanted.empty() && !wanted[r]) {
            addresses_.push_back(0);
            continue;
        }
        try {
            mapped_.back() = MappedMemory(gpu, handles[r]);
        } catch (const GpuError& error) {
            why_not_[r] = error.what();
            trouble = "mapping the memory of rank " + std::to_string(r) +
                      (handles[r].type == HandleType::none
                           ? ""
                           : std::string(" by its ") + name_of(handles[r].type) + " handle") +
                      ": " + error.what();
        }
        addresses_.push_back(mapped_.back().address());
    }
    const auto failed = static_cast<std::size_t>(trouble.empty() ? 0 : 1);
    if (largest_on_ranks(communicator, failed) == 0 || missing == Missing::is_reported) return;
    throw CannotMap(trouble.empty() ? "another rank cannot map the memory of its peers" : trouble);
}

// ---- which type of handle works
// -----------------------------------------------------------------------------------

// Memory of the driver's, made for one type of handle, to test whether other processes can map it. After a
// success it is kept for the next trial: freeing it would wait for the device, which may wait for ranks that
// have ended.
class HandleTypeTrial {
  public:
    static std::shared_ptr<const HandleTypeTrial> of(Gpu& gpu, HandleType type) {
        static std::mutex mutex;
        static auto* kept = // never destroyed: the driver may be unloaded first
            new std::map<std::pair<const Gpu*, HandleType>, std::shared_ptr<const HandleTypeTrial>>;
        std::lock_guard lock(mutex);
        auto& trial = (*kept)[{&gpu, type}];
        if (!trial || !trial->trouble_.empty()) trial = std::make_shared<const HandleTypeTrial>(gpu, type);
        return trial;
    }
    HandleTypeTrial(Gpu& gpu, HandleType type) : gpu_(gpu) {
        const CurrentGpu current(gpu);
        exporter_.handle_ = own_handle(gpu);
        if (!gpu.allows(type)) {
            trouble_ = "JALI_PEER_HANDLES leaves it out";
            return;
        }
        if (type == HandleType::descriptor) {
            try {
                block_ = make_virtual(gpu.api(), gpu.device(), 1, gpu.network_reads_virtual());
                exporter_.handle_.address = block_.address;
                if (block_.address != 0) {
                    std::vector<SharedPiece> pieces;
                    pieces.push_back(export_virtual(gpu.api(), block_));
                    exporter_.descriptors_ = std::make_shared<FdExporter>(std::move(pieces));
                    exporter_.handle_.token = exporter_.descriptors_->token();
                }
            } catch (const std::runtime_error& error) { // the driver's or the socket's
                trouble_ = error.what();
            }
        } else if (gpu.api().allocate(&plain_, 1) == gpu_success) {
            exporter_.handle_.address = plain_;
            const int error = gpu.api().ipc_export(&exporter_.handle_.ipc, plain_);
            if (error != gpu_success) trouble_ = gpu.api().text_of(error);
        }
        if (trouble_.empty() && exporter_.handle_.address == 0) trouble_ = "the device has no memory left";
        if (trouble_.empty()) exporter_.handle_.type = type;
    }
    ~HandleTypeTrial() { // for memory that could not be exported
        try {
            const CurrentGpu current(gpu_);
            if (plain_ != 0) gpu_.api().release(plain_);
            unmake_virtual(gpu_.api(), block_);
        } catch (const GpuError&) { // the device is lost; other calls report it
        }
    }
    HandleTypeTrial(const HandleTypeTrial&) = delete;
    const MemoryHandle& handle() const { return exporter_.handle(); }
    const std::string& trouble() const { return trouble_; }

  private:
    Gpu& gpu_;
    HandleExporter exporter_;
    GpuAddress plain_ = 0;
    VirtualBlock block_;
    std::string trouble_;
};

namespace {

// Between all processes; empty, or the first rank's trouble.
std::string try_type(const std::shared_ptr<Gpu>& gpu, Communicator& communicator, HandleType type) {
    const auto trial = HandleTypeTrial::of(*gpu, type);
    const auto handles = gather_values(communicator, trial->handle(), "types of memory handles");
    std::string trouble = trial->trouble();
    for (int r = 0; r < communicator.size() && trouble.empty(); ++r) {
        const MemoryHandle &mine = trial->handle(), &other = handles[r];
        if (other.process == mine.process || std::strcmp(other.host, mine.host) != 0) continue;
        if (other.type == HandleType::none) continue; // that rank reports why
        try {
            MappedMemory mapped(gpu, other);
        } catch (const GpuError& error) {
            trouble = error.what();
        }
    }
    // also keeps the memory of all ranks until all have tried
    return first_reported(communicator, trouble, "device memory of ranks");
}

} // namespace

std::string agree_on_handle_type(const std::shared_ptr<Gpu>& gpu, Communicator& communicator) {
    struct ProcessHandles {
        std::int64_t process;
        HandleType type;
    };
    const auto of_ranks =
        gather_values(communicator, ProcessHandles{getpid(), gpu->handle_type()}, "types of memory handles");
    HandleType first = HandleType::ipc; // tried first: the type that a pool already uses
    bool processes = false;
    for (const ProcessHandles& one : of_ranks) {
        first = std::max(first, one.type);
        processes = processes || one.process != of_ranks.front().process;
    }
    if (!processes) return "";
    std::string why[std::size(handle_types)];
    for (const bool begun : {true, false}) {
        for (const HandleTypeSpec& spec : handle_types) {
            if ((spec.type == first) != begun) continue;
            std::string& trouble = why[&spec - handle_types];
            trouble = try_type(gpu, communicator, spec.type);
            if (trouble.empty()) {
                gpu->use_handle_type(spec.type);
                return "";
            }
        }
    }
    std::string trouble;
    for (const HandleTypeSpec& spec : handle_types)
        trouble += (trouble.empty() ? "" : "; ") + std::string(spec.name) + ": " + why[&spec - handle_types];
    return "processes cannot map each other's device memory (" + trouble +
           "); let them share a container with its network and IPC namespaces, or use transports that need "
           "no such "
           "memory: those of the vendor's library, of gpu-aware-mpi or host-staged";
}

} // namespace jali
