// Builtin kernels, which need no site function: bytes of NumPy arrays in and out of fields, fields in another order of
// sites, and the order-free sums of core/sum, digit by digit the same as on the host.

// A section of a site's bytes: so many units in packets, behind the bytes of the sections before it.
struct section_on_device {
    int64_t units, packet_units, first, site_bytes;
};
// Where unit r of a section of a site is in a field; see memory_gpu.hpp. In an array of C order, which has no packets, the
// bytes of a site follow each other.
template <class Unit>
JALI_INLINE int64_t location_in_field(const section_on_device& s, int64_t x, int r) {
    const int size = int(s.packet_units);
    if (size == 0) return x * s.site_bytes + s.first + r * int64_t(sizeof(Unit));
    return (x / GROUP) * (GROUP * s.site_bytes) + GROUP * s.first +
           ((r / size) * (GROUP * size) + x % GROUP * size + r % size) * int64_t(sizeof(Unit));
}

struct box_arguments {
    int64_t count; // sites
    section_on_device section;
    const int32_t* blocks; // which sites of the field
    char* array;           // [count][site_bytes]
    char* field;
    int64_t begin, end;    // the sites that the field has; what comes out of others is zero
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
        const int64_t x = a.blocks[site];
        if (x < a.begin || x >= a.end) {
            for (int b = 0; !in && b < int(sizeof(Unit)); ++b) array[b] = 0;
            continue;
        }
        Unit* field = (Unit*)(a.field + location_in_field<Unit>(s, x, r));
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
    int64_t begin, end;           // the sites of `to`
    int64_t from_begin, from_end; // and of `from`; others are left as they are
    section_on_device from_section, to_section; // of as many units
    const char* from;
    char* to;
    const int32_t* places; // per site of `to`: the site of `from`; null: the same
};
template <class Unit>
JALI_INLINE void reorder(const reorder_arguments& a) {
    const int units = int(a.to_section.units);
    const int64_t count = a.end - a.begin;
    JALI_FOR_EACH(i, 0, count * units) {
        // neighbouring threads take neighbouring sites of one unit
        const int64_t group = i / (GROUP * units), rest = i - group * GROUP * units;
        const int64_t whole = (group + 1) * GROUP <= count ? GROUP : count - group * GROUP;
        const int64_t x = a.begin + group * GROUP + rest % whole;
        const int r = int(rest / whole);
        const int64_t source = a.places ? a.places[x] : x;
        if (source < a.from_begin || source >= a.from_end) continue;
        *(Unit*)(a.to + location_in_field<Unit>(a.to_section, x, r)) =
            *(const Unit*)(a.from + location_in_field<Unit>(a.from_section, source, r));
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

// Halos (halos.hpp): one launch packs, and waits for what arrives if it is told to.
JALI_KERNEL_FOR(1024, pack_halos, pack_arguments) {
    const int64_t epoch = *a.epoch;
    bool ends = false;
    if (!pack_all(a, whole_grid(), epoch, ends) || a.last == 0) return;
    if (meet_all(thread_in_block() != 0 || ends)) await_words(a.awaited, a.awaited_count, epoch, a.epoch, IN_PACK_HALOS, a.watch);
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
