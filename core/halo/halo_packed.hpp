// Carriers of messages that are packed into memory of this rank first.
#pragma once

#include "halo/halo_transport.hpp"

namespace jali {

// `Base` is HaloCarrier, or one with slots at the receiver.
template <class Base>
class PackedHere : public Base {
  public:
    template <class... More>
    explicit PackedHere(HaloMessages& halo, More... more)
        : Base(halo, more...), send_(halo.gpu->allocate(halo.send_bytes, "halo messages sent")) {}
    GpuAddress place_of(const HaloMessages::Message& message, const HaloMessages::Part& part) const override {
        return send_.address() + message.send_offset + part.send_offset;
    }

  protected:
    GpuMemory send_;
};

} // namespace jali
