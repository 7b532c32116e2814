#include "messaging/shm_exposed.hpp"
#include "messaging/shm_heap.hpp"

#include <cstring>
#include <exception>
#include <optional>

namespace jali::shm {

namespace {

class HeapExposure final : public Exposure {
  public:
    explicit HeapExposure(std::unique_ptr<Heap::Piece> piece) : piece_(std::move(piece)) {}

  private:
    std::unique_ptr<Heap::Piece> piece_;
};

class ExposedHeaps final : public ExposedMemory {
  public:
    ExposedHeaps(std::vector<std::shared_ptr<MappedHeap>> heaps, std::string why_not)
        : heaps_(std::move(heaps)), why_not_(std::move(why_not)) {}

    bool reaches(int rank) const override { return heaps_[rank] != nullptr; }
    const std::string& why_not() const override { return why_not_; }

    std::unique_ptr<Exposure> expose(Memory& memory, std::size_t bytes, ExposureName& name) override {
        if (!memory.has_own_pages()) throw std::logic_error("memory without pages of its own is exposed");
        if (bytes == 0) return std::make_unique<Exposure>();
        const std::size_t page = Heap::page_bytes();
        const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size() - bytes;
        const std::uintptr_t first = begin / page * page;
        const std::size_t pages = (begin + bytes - first + page - 1) / page * page;
        auto piece = Heap::of_process().replace(reinterpret_cast<std::byte*>(first), pages);
        name = {piece->offset + (begin - first), bytes, begin};
        return std::make_unique<HeapExposure>(std::move(piece));
    }

    std::byte* address(int rank, const ExposureName& name) const override {
        return heaps_[rank] ? heaps_[rank]->at(name.offset) : nullptr;
    }

  private:
    std::vector<std::shared_ptr<MappedHeap>> heaps_; // null: not reached
    std::string why_not_;
};

struct Trouble {
    char text[160] = {}; // empty: none
    void note(const std::exception& error) { std::strncpy(text, error.what(), sizeof text - 1); }
    explicit operator bool() const { return text[0] != 0; }
};

struct AnnouncedHeap {
    FdToken token{};
    Trouble trouble; // without a heap
};

} // namespace

std::shared_ptr<ExposedMemory> expose_heaps(Communicator& communicator, const std::vector<char>& may_share) {
    const int size = communicator.size(), me = communicator.rank();
    AnnouncedHeap mine;
    try {
        mine.token = Heap::of_process().token();
    } catch (const std::exception& error) {
        mine.trouble.note(error);
    }
    const auto announced = gather_values(communicator, mine, "exposing memory: heaps");
    std::vector<std::shared_ptr<MappedHeap>> heaps(size);
    std::vector<char> reached(size, 0);
    Trouble trouble;
    for (int rank = 0; rank < size; ++rank) {
        if (rank == me || !may_share[rank]) continue;
        if (mine.trouble || announced[rank].trouble) {
            trouble = mine.trouble ? mine.trouble : announced[rank].trouble;
            continue;
        }
        try {
            heaps[rank] = MappedHeap::of(announced[rank].token);
            reached[rank] = 1;
        } catch (const std::exception& error) {
            trouble.note(error);
        }
    }
    const auto all = communicator.all_gather(std::as_bytes(std::span(reached)), "exposing memory: reached");
    bool any = false;
    for (int rank = 0; rank < size; ++rank) {
        check_bytes(all[rank], reached.size(), rank, "exposing memory");
        if (all[rank][me] == std::byte{0}) heaps[rank].reset();
        for (int other = 0; other < size; ++other)
            any |= all[rank][other] != std::byte{0} && all[other].size() > static_cast<std::size_t>(rank) &&
                   all[other][rank] != std::byte{0};
    }
    std::string why_not;
    for (const Trouble& theirs : gather_values(communicator, trouble, "exposing memory: trouble"))
        if (!any && why_not.empty()) why_not = theirs.text;
    if (!any && why_not.empty()) why_not = "no two ranks are processes of one host that share memory";
    return std::make_shared<ExposedHeaps>(std::move(heaps), std::move(why_not));
}

} // namespace jali::shm
