// Halos between devices that reach each other's memory: packing, and kernels of sites whose blocks pack, compute, wait and
// compute (`halo_roles`). signals.hpp comes before it.

// Halos. A message is made of parts, each one section of the bytes of ghost sites of one field: whole groups of sites, stored
// as in the field. Between devices that reach each other's memory a part is stored right into the receiver's
// ghosts, or into a buffer at the receiver with two slots, used in turn. Exchanges are counted (`epoch`, in
// device memory): a message of exchange e has arrived when its word at the receiver is e + 1. It may be
// written when the word of the receiver's credit has come to e + ahead: of slots it says how many exchanges
// were consumed (ahead is -1: there are two slots; 0 for copy engines: one), of ghosts for how many exchanges they have been opened
// (ahead is 1). Work is dealt out in jobs, one to a block; with fewer blocks each takes several.
struct halo_job {
    int32_t item, message; // the part or section, and the message that it belongs to
    int32_t turn, turns;   // which of the blocks that share the item
};
struct pack_part {
    const void* field;
    const int32_t* sites; // null: 0, 1, 2, ...
    int64_t count;        // sites
    int64_t packets;      // of a site
    int64_t packet_bytes;
    int64_t group_bytes; // from one group of sites to the next, here and where it goes
    int64_t row_bytes;   // of a site of an array in C order, if it is one
    char* to;            // in slot 0
};
struct pack_message {
    int64_t jobs;
    int64_t* arrived;    // the word at the receiver
    const int64_t* credit; // the receiver's, here; null: it may always be written
    int64_t ahead;
};
struct pack_arguments {
    const pack_part* parts;
    const pack_message* messages;
    const halo_job* jobs;
    int64_t count, job_count; // messages, jobs
    int64_t busy;             // messages that have jobs
    int64_t slot_bytes;       // between the slots; 0: there is one
    int64_t* epoch;
    int64_t* retired;       // [message], and one more: jobs or messages that are done, zero before and after
    int64_t* const* opened; // words of credit: this device's ghosts may be written
    int64_t opened_count;
    const int64_t* const* awaited; // words of arrival
    int64_t awaited_count;
    int64_t last; // not 0: the exchange ends with this launch, when the awaited words have come
    int64_t* watch;
};

// For all threads of a block: whether the message may be written; not if the host has given up.
JALI_INLINE bool wait_for_credit(const pack_message& message, int64_t epoch, int64_t* watch) {
    return message.credit == nullptr || wait_in_block(message.credit, epoch + message.ahead, IN_PACK_HALOS, watch);
}

// False if the host has given up. Several packets of a thread are under way at a time, the first of them while it may not be written yet.
template <class Packet>
JALI_INLINE bool pack_section(const pack_part& part, const pack_message& message, const halo_job& job,
                              int64_t slot, int64_t epoch, int64_t* watch) {
    constexpr int several = 4;
    const char* from = (const char*)part.field;
    char* out = part.to + slot;
    const uint32_t per_group = GROUP * uint32_t(part.packets), count = uint32_t(part.count);
    const uint32_t units = (count + GROUP - 1) / GROUP * per_group;
    const uint32_t step = uint32_t(job.turns * threads_in_block());
    bool waited = false;
    uint32_t first = uint32_t(job.turn * threads_in_block() + thread_in_block());
    do {
        Packet held[several];
        bool there[several];
        int64_t place[several]; // bytes in the part
        JALI_UNROLL
        for (int k = 0; k < several; ++k) {
            const uint32_t u = first + uint32_t(k) * step;
            const uint32_t group = u / per_group, rest = u - group * per_group;
            const uint32_t site = group * GROUP + rest % GROUP, packet = rest / GROUP;
            there[k] = u < units && site < count;
            if (!there[k]) continue;
            const uint32_t x = part.sites ? uint32_t(part.sites[site]) : site;
            place[k] = int64_t(group) * part.group_bytes + int64_t(rest * sizeof(Packet));
            held[k] = part.row_bytes
                          ? ((const Packet*)(from + int64_t(x) * part.row_bytes))[packet]
                          : ((const Packet*)(from + int64_t(x / GROUP) * part.group_bytes))[packet * GROUP + x % GROUP];
        }
        if (!waited && !wait_for_credit(message, epoch, watch)) return false;
        waited = true;
        JALI_UNROLL
        for (int k = 0; k < several; ++k)
            if (there[k]) *(Packet*)(out + place[k]) = held[k];
        first += several * step;
    } while (first < units);
    return true;
}
JALI_INLINE bool do_pack_job(const pack_arguments& a, const halo_job& job, int64_t epoch) {
    const pack_part& part = a.parts[job.item];
    const pack_message& message = a.messages[job.message];
    const int64_t slot = (epoch & 1) * a.slot_bytes;
    if (part.packet_bytes == 16) return pack_section<bytes16>(part, message, job, slot, epoch, a.watch);
    if (part.packet_bytes == 8) return pack_section<int64_t>(part, message, job, slot, epoch, a.watch);
    if (part.packet_bytes == 4) return pack_section<int32_t>(part, message, job, slot, epoch, a.watch);
    if (part.packet_bytes == 2) return pack_section<short>(part, message, job, slot, epoch, a.watch);
    return pack_section<char>(part, message, job, slot, epoch, a.watch);
}

// The end of an exchange, by one block: all has arrived, and is counted.
JALI_INLINE void await_words(const int64_t* const* words, int64_t count, int64_t epoch, int64_t* counted, int64_t step,
                             int64_t* watch) {
    const bool came = wait_for_all(words, count, epoch + 1, step, watch);
    if (came && counted != nullptr && thread_in_block() == 0) *counted = epoch + 1;
}

// Opens this device's ghosts, stores all messages and signals them, by the blocks of a part of the grid; false if the host
// has given up. `ends`, of the first thread of a block: with it all messages are packed, if they are counted (`last`).
JALI_INLINE bool pack_all(const pack_arguments& a, const grid_part& part, int64_t epoch, bool& ends) {
    if (part.block == 0)
        for (int64_t k = thread_in_block(); k < a.opened_count; k += threads_in_block()) signal(a.opened[k], epoch + 1);
    ends = a.busy == 0;
    if (part.block >= a.job_count) meet(); // as in every job
    for (int64_t b = part.block; b < a.job_count; b += part.blocks) {
        const halo_job job = a.jobs[b];
        if (!do_pack_job(a, job, epoch)) return false; // and say nothing of what is not there
        const pack_message& message = a.messages[job.message];
        if (!all_retired(a.retired + job.message, message.jobs, 1)) continue;
        signal(message.arrived, epoch + 1);
        if (a.last != 0 && count_atomically(a.retired + a.count) + 1 == a.busy) {
            a.retired[a.count] = 0;
            ends = true;
        }
    }
    return true;
}

// ---- one launch that packs, computes, waits and computes --------------------------------------------------------------

// Blocks of a site function's kernel have roles. The first ones pack. Those of the bulk compute sites that need no arriving
// halo: they are the first ones too, which go on when they have packed, or (where sites write what is packed) come behind
// them. The last ones wait and compute the boundary. So whoever is waited for has its place before those that wait, of which
// the host lets there be fewer than places.
struct halo_roles {
    int64_t pack_blocks, bulk_blocks, late_blocks;
    int64_t first_bulk;    // block: 0, or the one behind those that pack
    int64_t begin, end;    // of the boundary
    uint64_t blocks, sums; // its sites, and where their contributions to sums go
    int64_t sites_wait;    // not 0: sites write what is packed, and come after it
    int64_t counted;       // blocks that look at the count of exchanges: the last of them counts; 0: another launch does
    int64_t* packed;       // the last exchange whose messages this device has packed
    int64_t* retired;      // counted blocks that have looked, zero before and after
    pack_arguments pack;
};

// Of a block whose threads have all looked at the count of exchanges, and met since, and wait for nothing any more: with the
// last one the exchange ends.
JALI_INLINE void has_looked(const halo_roles& a) {
    if (a.counted == 0 || thread_in_block() != 0) return;
    fence_device(); // before the block computes: there are no stores to wait for
    if (count_atomically(a.retired) + 1 != a.counted) return;
    *a.retired = 0;
    *a.pack.epoch += 1;
}
// Whether the block computes sites, and which part of the grid it belongs to then.
JALI_INLINE bool begin_role(grid_part& part, const halo_roles& a) {
    const int64_t block = block_in_grid(), epoch = *a.pack.epoch;
    const int64_t end_bulk = a.first_bulk + a.bulk_blocks, first_late = a.pack_blocks > end_bulk ? a.pack_blocks : end_bulk;
    const bool packs = block < a.pack_blocks, late = block >= first_late;
    if (packs) {
        bool ends = false;
        if (!pack_all(a.pack, grid_part{block, a.pack_blocks, false}, epoch, ends)) return false;
        if (ends) signal(a.packed, epoch + 1);
    }
    const bool computes = late || (block >= a.first_bulk && block < end_bulk), waits = computes && a.sites_wait != 0;
    part = late ? grid_part{block - first_late, a.late_blocks, true} : grid_part{block - a.first_bulk, a.bulk_blocks, false};
    if (late && !wait_for_all(a.pack.awaited, a.pack.awaited_count, epoch + 1, IN_SITES, a.pack.watch)) return false;
    if (waits && !wait_in_block(a.packed, epoch + 1, IN_SITES, a.pack.watch)) return false;
    if (packs || late || waits) has_looked(a);
    return computes;
}
