// Builtin kernels, which need no site function: bytes of NumPy arrays in and out of fields, fields in another order of
// sites, and the order-free sums of core/sum, digit by digit the same as on the host.

// A section of a site's bytes: so many units in packets, behind the bytes of the sections before it.
struct section_on_device {
    int64_t units, packet_units, first, site_bytes;
};
// Where unit r of a section of a site is in a field; see memory_gpu.hpp. In an array of C order a site is one packet.
template <class Unit>
JALI_INLINE int64_t place_in_field(const section_on_device& s, int64_t x, int r) {
    const int size = int(s.packet_units);
    return (x / GROUP) * (GROUP * s.site_bytes) + GROUP * s.first +
           ((r / size) * (GROUP * size) + x % GROUP * size + r % size) * int64_t(sizeof(Unit));
}

struct box_arguments {
    int64_t count; // sites
    section_on_device section;
    const int32_t* blocks; // which sites of the field
    char* array;           // [count][site_bytes]
    char* field;
};
template <class Unit>
JALI_INLINE void box(const box_arguments& a, bool in) {
    const section_on_device& s = a.section;
    const int units = int(s.units);
    const bool aligned = (s.site_bytes | s.first) % int64_t(sizeof(Unit)) == 0;
    JALI_FOR_EACH(i, 0, a.count * units) {
        const int64_t site = i / units;
        const int r = int(i - site * units);
        char* array = a.array + site * s.site_bytes + s.first + r * int64_t(sizeof(Unit));
        Unit* field = (Unit*)(a.field + place_in_field<Unit>(s, a.blocks[site], r));
        if (aligned && in) {
            *field = *(const Unit*)array;
        } else if (aligned) {
            *(Unit*)array = *field;
        } else if (in) {
            Unit unit;
            for (int b = 0; b < int(sizeof(Unit)); ++b) ((char*)&unit)[b] = array[b];
            *field = unit;
        } else {
            const Unit unit = *field;
            for (int b = 0; b < int(sizeof(Unit)); ++b) array[b] = ((const char*)&unit)[b];
        }
    }
}
JALI_KERNEL(box_in_1, box_arguments) { box<char>(a, true); }
JALI_KERNEL(box_in_2, box_arguments) { box<short>(a, true); }
JALI_KERNEL(box_in_4, box_arguments) { box<int32_t>(a, true); }
JALI_KERNEL(box_in_8, box_arguments) { box<int64_t>(a, true); }
JALI_KERNEL(box_out_1, box_arguments) { box<char>(a, false); }
JALI_KERNEL(box_out_2, box_arguments) { box<short>(a, false); }
JALI_KERNEL(box_out_4, box_arguments) { box<int32_t>(a, false); }
JALI_KERNEL(box_out_8, box_arguments) { box<int64_t>(a, false); }

struct reorder_arguments {
    int64_t count; // sites from the first of both fields on
    section_on_device from_section, to_section; // of as many units
    const char* from;
    char* to;
    const int32_t* places; // per site of `to`: the site of `from`; null: the same
};
template <class Unit>
JALI_INLINE void reorder(const reorder_arguments& a) {
    const int units = int(a.to_section.units);
    JALI_FOR_EACH(i, 0, a.count * units) {
        // neighbouring threads take neighbouring sites of one unit
        const int64_t group = i / (GROUP * units), rest = i - group * GROUP * units;
        const int64_t whole = (group + 1) * GROUP <= a.count ? GROUP : a.count - group * GROUP;
        const int64_t x = group * GROUP + rest % whole;
        const int r = int(rest / whole);
        const int64_t source = a.places ? a.places[x] : x;
        *(Unit*)(a.to + place_in_field<Unit>(a.to_section, x, r)) =
            *(const Unit*)(a.from + place_in_field<Unit>(a.from_section, source, r));
    }
}
JALI_KERNEL(reorder_1, reorder_arguments) { reorder<char>(a); }
JALI_KERNEL(reorder_2, reorder_arguments) { reorder<short>(a); }
JALI_KERNEL(reorder_4, reorder_arguments) { reorder<int32_t>(a); }
JALI_KERNEL(reorder_8, reorder_arguments) { reorder<int64_t>(a); }

struct deposit_term { // of a component: see LaunchTerm (core/halo) and core/sum/site_reduction.hpp
    int64_t how, first, entries, label;
    int64_t counts; // group of labels whose sites without a result it counts; -1: none
};
struct deposit_arguments {
    const double* values;  // [component][stride]
    int64_t stride;        // of a component
    const int32_t* order;  // positions, slice by slice; null: as they come
    const int64_t* starts; // [slices + 1]: where each slice's positions begin
    int64_t slices, components;
    int64_t blocks;        // per slice and component
    int64_t* words;        // [slice][result][SUM_WORDS], zero at first; then one for each group of labels
    const deposit_term* terms; // [component]; null: each is a sum by itself
    int64_t results;       // per slice
};
// Contributions that go to one of several results each, the one that a label says. Those of other labels are counted.
JALI_INLINE void deposit_labelled(const deposit_arguments& a, const deposit_term& t, const double* values, int64_t first,
                                  int64_t end, int64_t step) {
    const int64_t* labels = (const int64_t*)a.values + (a.components + t.label) * a.stride;
    for (int64_t i = first; i < end; i += step) {
        const int64_t label = labels[i];
        if (label >= 0 && label < t.entries) {
            add_alone(values[i], a.words + (t.first + label) * SUM_WORDS);
        } else if (t.counts >= 0) {
            add_atomically(a.words + (a.results + t.counts) * SUM_WORDS, 1);
        }
    }
}
JALI_KERNEL(deposit, deposit_arguments) {
    JALI_SHARED int64_t words[SUM_WORDS];
    const int64_t jobs = a.slices * a.components * a.blocks;
    for (int64_t job = block_in_grid(); job < jobs; job += blocks_in_grid()) {
        const int64_t which = job / a.blocks, part = job % a.blocks;
        const int64_t slice = which / a.components, component = which % a.components;
        const double* values = a.values + component * a.stride;
        const int64_t first = a.starts[slice] + part * threads_in_block() + thread_in_block();
        const int64_t end = a.starts[slice + 1], step = a.blocks * threads_in_block();
        deposit_term t = {0, component, 1, -1, -1};
        if (a.terms) t = a.terms[component];
        if (t.label >= 0) {
            deposit_labelled(a, t, values, first, end, step);
            continue;
        }
        int64_t* const total = a.words + (slice * a.results + t.first) * SUM_WORDS;
        begin_words(words, SUM_WORDS);
        if (t.how != 0) {
            uint64_t key = 0;
            for (int64_t i = first; i < end; i += step)
                raise_key(key, key_of_bits(t.how, bits_of_double(values[a.order ? a.order[i] : i])));
            end_key(key, words);
            take_key(total, words);
            continue;
        }
        digit_sums s;
        begin_sums(s);
        for (int64_t i = first; i < end; i += step)
            add_to_sums(s, values[a.order ? a.order[i] : i], words);
        end_sums(s, words);
        add_words(total, words, SUM_WORDS);
    }
}

// Sums into the host's memory; what they were added to is ready for the next. Behind the sums stands a word of how many blocks
// have ended on the device, and the number of this turn at the host, which looks for it: the last block puts it there.
struct hand_over_arguments {
    int64_t* words;
    int64_t* host;
    int64_t count, turn;
};
JALI_KERNEL(hand_over, hand_over_arguments) {
    JALI_FOR_EACH(i, 0, a.count) {
        *(volatile int64_t*)(a.host + i) = a.words[i];
        a.words[i] = 0;
    }
    fence_system();
    meet();
    if (thread_in_block() == 0 && count_atomically(a.words + a.count) == blocks_in_grid() - 1) {
        a.words[a.count] = 0;
        signal(a.host + a.count, a.turn);
    }
}

// Halos. A message is made of parts, each one section of the bytes of ghost sites of one field: whole groups of sites, stored
// as in the field. Between devices that reach each other's memory a part is stored right into the receiver's
// ghosts, or into a buffer at the receiver with two slots, used in turn. Exchanges are counted (`epoch`, in
// device memory): a message of exchange e has arrived when its word at the receiver is e + 1. It may be
// written when the word of the receiver's credit has come to e + ahead: of slots it says how many exchanges
// were consumed (ahead is -1: there are two slots), of ghosts for how many exchanges they have been opened
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

JALI_KERNEL_FOR(1024, pack_halos, pack_arguments) {
    JALI_SHARED bool ends; // no other block has anything left to do
    const int64_t epoch = *a.epoch;
    if (block_in_grid() == 0)
        for (int64_t k = thread_in_block(); k < a.opened_count; k += threads_in_block()) signal(a.opened[k], epoch + 1);
    if (thread_in_block() == 0) ends = a.busy == 0;
    for (int64_t b = block_in_grid(); b < a.job_count; b += blocks_in_grid()) {
        const halo_job job = a.jobs[b];
        if (!do_pack_job(a, job, epoch)) return; // and say nothing of what is not there
        const pack_message& message = a.messages[job.message];
        if (!all_retired(a.retired + job.message, message.jobs, 1)) continue;
        signal(message.arrived, epoch + 1);
        if (a.last != 0 && count_atomically(a.retired + a.count) + 1 == a.busy) {
            a.retired[a.count] = 0;
            ends = true;
        }
    }
    if (a.last == 0) return;
    meet();
    if (ends) await_words(a.awaited, a.awaited_count, epoch, a.epoch, IN_PACK_HALOS, a.watch);
}

// Into this device's own memory; somebody else carries the messages from there.
JALI_KERNEL_FOR(1024, gather_halos, pack_arguments) {
    for (int64_t b = block_in_grid(); b < a.job_count; b += blocks_in_grid()) do_pack_job(a, a.jobs[b], 0);
}

// One block waits until messages have arrived; what reads them comes after it on its stream.
struct arrival_arguments {
    const int64_t* const* awaited;
    int64_t count;
    int64_t* epoch;
    int64_t last; // not 0: with this launch the exchange ends
    int64_t* watch;
};
JALI_KERNEL(await_halos, arrival_arguments) {
    await_words(a.awaited, a.count, *a.epoch, a.last != 0 ? a.epoch : nullptr, IN_AWAIT_HALOS, a.watch);
}

// Messages that were brought by copy engines have arrived.
struct signal_arguments {
    const pack_message* messages;
    int64_t count;
    const int64_t* epoch;
};
JALI_KERNEL(signal_halos, signal_arguments) {
    JALI_FOR_EACH(m, 0, a.count) signal(a.messages[m].arrived, *a.epoch + 1);
}
// Waits until copy engines may write into the receivers' slots.
struct await_arguments {
    const pack_message* messages;
    int64_t count;
    const int64_t* epoch;
    int64_t* watch;
};
JALI_KERNEL(await_slots, await_arguments) {
    JALI_FOR_EACH(m, 0, a.count)
        wait(a.messages[m].credit, *a.epoch + a.messages[m].ahead, IN_AWAIT_SLOTS, a.watch);
}

struct receive_section {
    const char* from; // in slot 0 of this device's buffer
    void* to;
    int64_t bytes; // a multiple of 16
    const int64_t* arrived;
};
struct receive_arguments {
    const receive_section* sections;
    const halo_job* jobs;
    int64_t job_count;
    int64_t slot_bytes;
    int64_t* epoch;
    int64_t* retired;        // blocks that are done, zero before and after
    int64_t* const* senders; // words of credit at all who may send: how many exchanges this device has consumed
    int64_t senders_count;
    int64_t last; // not 0: with this launch the exchange is consumed
    int64_t* watch;
};
JALI_KERNEL(receive_halos, receive_arguments) {
    constexpr int several = 4;
    const int64_t epoch = *a.epoch;
    for (int64_t b = block_in_grid(); b < a.job_count; b += blocks_in_grid()) {
        const halo_job job = a.jobs[b];
        const receive_section& section = a.sections[job.item];
        if (!wait_in_block(section.arrived, epoch + 1, IN_RECEIVE_HALOS, a.watch)) return;
        const bytes16* source = (const bytes16*)(section.from + (epoch & 1) * a.slot_bytes);
        bytes16* to = (bytes16*)section.to;
        const int64_t units = section.bytes / 16, step = job.turns * threads_in_block();
        for (int64_t first = job.turn * threads_in_block() + thread_in_block(); first < units;
             first += several * step) {
            bytes16 held[several];
            JALI_UNROLL
            for (int k = 0; k < several; ++k)
                if (first + k * step < units) held[k] = fresh(source + first + k * step);
            JALI_UNROLL
            for (int k = 0; k < several; ++k)
                if (first + k * step < units) to[first + k * step] = held[k];
        }
    }
    if (!all_retired(a.retired, blocks_in_grid(), 1) || a.last == 0) return;
    *a.epoch = epoch + 1;
    for (int64_t k = 0; k < a.senders_count; ++k) signal(a.senders[k], epoch + 1);
}
