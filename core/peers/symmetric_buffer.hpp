// Device memory of the same size and layout on every rank of a communicator, which all of them have mapped.
//
// Kernels read it while other devices write it, for which some devices have memory of a kind (fine-grained).
// peer_memory maps memory between processes and devices; this file decides which ranks have to be reached,
// with the same result on all ranks.
#pragma once

#include "peers/peer_memory.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace jali {

class SymmetricBuffer {
  public:
    // Empty if every rank's device can be reached by every other; else why not. Collective; the same on all
    // ranks. See agree_on_handle_type.
    static std::string why_not(const std::shared_ptr<Gpu>& gpu, Communicator& communicator);

    enum class Reach { all, some }; // must every rank be reached, or as many as can be

    // Collective. Throws GpuError on all ranks where all are to be reached and some cannot.
    SymmetricBuffer(std::shared_ptr<Gpu> gpu, std::shared_ptr<Communicator> communicator,
                    Reach reach = Reach::all);
    SymmetricBuffer(const SymmetricBuffer&) = delete;

    // So many bytes on each rank, of which the first `zeroed` are 0, in place of those before: all ranks
    // wait for their devices. Collective, with equal numbers. Throws GpuError; CannotMap, on all ranks.
    void allocate(std::size_t bytes, std::size_t zeroed, std::string_view label);

    std::size_t bytes() const { return memory_.size(); }
    GpuAddress of(int rank) const { return mapping_->of(rank); } // as this rank's device sees it
    const std::vector<GpuAddress>& all() const { return mapping_->all(); }
    GpuAddress mine() const { return memory_.address(); }

    // Empty if the memory of `rank` can be reached from here and ours from there, else why not.
    const std::string& why_not(int rank) const { return why_not_[rank]; }
    bool all_reached() const { return all_reached_; } // by all: the same on all ranks
    bool in_this_process(int rank) const { return in_this_process_[rank]; }

    const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
    const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  private:
    void map_whom_it_can();

    std::shared_ptr<Gpu> gpu_;
    std::shared_ptr<Communicator> communicator_;
    Reach reach_;
    std::string no_fine_memory_; // on some rank; if reach is some
    std::string no_handle_type_; // between processes
    GpuMemory memory_;
    std::unique_ptr<PeerMapping> mapping_;
    std::vector<std::string> why_not_;
    std::vector<char> in_this_process_;
    bool all_reached_ = true;
};

} // namespace jali
