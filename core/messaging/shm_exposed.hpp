// Exposed memory between processes of one host: pieces of their heaps (shm_heap.hpp).
#pragma once

#include "messaging/exposed_memory.hpp"

namespace jali::shm {

// `may_share[rank]`: whether this rank and that one share memory already. Collective.
std::shared_ptr<ExposedMemory> expose_heaps(Communicator& communicator, const std::vector<char>& may_share);

} // namespace jali::shm
