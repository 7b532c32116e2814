// Kernels of jali's own that need no site function: boxes of NumPy arrays in and out of fields, conversion
// between precisions, and the order-free sums of core/sum, digit by digit the same as on the host.

// Where real r of a site is in a field of T with so many reals; see memory_gpu.hpp.
template <class T>
JALI_INLINE int64_t place_in_field(int64_t x, int r, int reals) {
    const int size = packet_size<T>(reals);
    return ((x / GROUP) * (reals / size) + r / size) * (GROUP * size) + x % GROUP * size + r % size;
}

struct box_arguments {
    int64_t count;         // sites
    int64_t reals;         // of a site
    const int32_t* blocks; // which sites of the field
    void* array;           // [count][reals]
    void* field;
};
template <class Array, class Store>
JALI_INLINE void box_in(const box_arguments& a) {
    const Array* array = (const Array*)a.array;
    Store* field = (Store*)a.field;
    const int reals = int(a.reals);
    JALI_FOR_EACH(i, 0, a.count * reals) {
        const int64_t site = i / reals;
        field[place_in_field<Store>(a.blocks[site], int(i - site * reals), reals)] = Store(array[i]);
    }
}
template <class Array, class Store>
JALI_INLINE void box_out(const box_arguments& a) {
    Array* array = (Array*)a.array;
    const Store* field = (const Store*)a.field;
    const int reals = int(a.reals);
    JALI_FOR_EACH(i, 0, a.count * reals) {
        const int64_t site = i / reals;
        array[i] = Array(field[place_in_field<Store>(a.blocks[site], int(i - site * reals), reals)]);
    }
}
JALI_KERNEL(box_in_float_float, box_arguments) { box_in<float, float>(a); }
JALI_KERNEL(box_in_float_double, box_arguments) { box_in<float, double>(a); }
JALI_KERNEL(box_in_double_float, box_arguments) { box_in<double, float>(a); }
JALI_KERNEL(box_in_double_double, box_arguments) { box_in<double, double>(a); }
JALI_KERNEL(box_out_float_float, box_arguments) { box_out<float, float>(a); }
JALI_KERNEL(box_out_float_double, box_arguments) { box_out<float, double>(a); }
JALI_KERNEL(box_out_double_float, box_arguments) { box_out<double, float>(a); }
JALI_KERNEL(box_out_double_double, box_arguments) { box_out<double, double>(a); }

struct convert_arguments {
    int64_t count; // sites from the first of both fields on
    int64_t reals;
    const void* from;
    void* to;
    const int32_t* places; // per site of `to`: the site of `from`; null: the same
};
template <class From, class To>
JALI_INLINE void convert(const convert_arguments& a) {
    const From* from = (const From*)a.from;
    To* to = (To*)a.to;
    const int reals = int(a.reals);
    JALI_FOR_EACH(i, 0, a.count * reals) {
        // neighbouring threads take neighbouring sites of one real
        const int64_t group = i / (GROUP * reals), rest = i - group * GROUP * reals;
        const int64_t whole = (group + 1) * GROUP <= a.count ? GROUP : a.count - group * GROUP;
        const int64_t x = group * GROUP + rest % whole;
        const int r = int(rest / whole);
        const int64_t source = a.places ? a.places[x] : x;
        to[place_in_field<To>(x, r, reals)] = To(from[place_in_field<From>(source, r, reals)]);
    }
}
JALI_KERNEL(convert_float_float, convert_arguments) { convert<float, float>(a); }
JALI_KERNEL(convert_float_double, convert_arguments) { convert<float, double>(a); }
JALI_KERNEL(convert_double_float, convert_arguments) { convert<double, float>(a); }
JALI_KERNEL(convert_double_double, convert_arguments) { convert<double, double>(a); }

struct deposit_arguments {
    const double* values;  // [component][stride]
    int64_t stride;        // of a component
    const int32_t* order;  // positions, slice by slice; null: as they come
    const int64_t* starts; // [slices + 1]: where each slice's positions begin
    int64_t slices, components;
    int64_t blocks;        // per slice and component
    int64_t* words;        // [slice][component][SUM_WORDS], zero at first
};
JALI_KERNEL(deposit, deposit_arguments) {
    JALI_SHARED int64_t words[SUM_WORDS];
    const int64_t jobs = a.slices * a.components * a.blocks;
    for (int64_t job = block_in_grid(); job < jobs; job += blocks_in_grid()) {
        const int64_t which = job / a.blocks, part = job % a.blocks;
        const int64_t slice = which / a.components, component = which % a.components;
        begin_words(words, SUM_WORDS);
        const double* values = a.values + component * a.stride;
        digit_sums s;
        begin_sums(s);
        const int64_t step = a.blocks * threads_in_block();
        for (int64_t i = a.starts[slice] + part * threads_in_block() + thread_in_block();
             i < a.starts[slice + 1]; i += step)
            add_to_sums(s, values[a.order ? a.order[i] : i], words);
        end_sums(s, words);
        add_words(a.words + which * SUM_WORDS, words, SUM_WORDS);
    }
}

// Sums into the host's memory; what they were added to is ready for the next.
struct hand_over_arguments {
    int64_t* words;
    int64_t* host;
    int64_t count;
};
JALI_KERNEL(hand_over, hand_over_arguments) {
    JALI_FOR_EACH(i, 0, a.count) {
        *(volatile int64_t*)(a.host + i) = a.words[i];
        a.words[i] = 0;
    }
}

// Halos. A message is made of parts, each a section of ghost sites of one field: whole groups of sites, stored
// as in the field. Messages between devices that reach each other's memory go into a mailbox at the receiver
// with two slots, used in turn. Exchanges are counted (`epoch`, in device memory): a message of exchange e has
// arrived when its word at the receiver is e + 1; its slot is free again when the receiver has said that it
// has consumed exchange e. Blocks are dealt out to messages.
struct pack_part {
    const void* field;
    const int32_t* sites; // null: 0, 1, 2, ...
    int64_t count;        // sites
    int64_t packets;      // of a site
    int64_t packet_bytes;
    int64_t offset; // in the message, in bytes
};
struct pack_message {
    char* to;           // where the message goes, in slot 0
    int64_t slot_bytes; // between the slots; 0: there is one
    int64_t first_part, parts;
    int64_t first_block, blocks;
    int64_t* arrived;        // the word at the receiver
    const int64_t* consumed; // how many exchanges the receiver has consumed
};
struct pack_arguments {
    const pack_part* parts;
    const pack_message* messages;
    int64_t count;        // messages
    const int64_t* epoch;
    int64_t* retired;     // [message]: blocks that are done, zero before and after
    const int64_t* abandoned;
};

template <class Packet>
JALI_INLINE void pack_section(const pack_part& part, char* to, int64_t first, int64_t step) {
    const Packet* from = (const Packet*)part.field;
    Packet* out = (Packet*)(to + part.offset);
    const uint32_t per_group = GROUP * uint32_t(part.packets), count = uint32_t(part.count);
    const uint32_t units = (count + GROUP - 1) / GROUP * per_group;
    for (uint32_t u = uint32_t(first); u < units; u += uint32_t(step)) {
        const uint32_t group = u / per_group, rest = u - group * per_group;
        const uint32_t site = group * GROUP + rest % GROUP, k = rest / GROUP;
        if (site >= count) continue;
        const uint32_t x = part.sites ? uint32_t(part.sites[site]) : site;
        out[u] = from[int64_t(x / GROUP) * per_group + k * GROUP + x % GROUP];
    }
}
JALI_INLINE void pack_parts(const pack_arguments& a, const pack_message& message, char* to, int64_t first,
                            int64_t step) {
    for (int64_t p = message.first_part; p < message.first_part + message.parts; ++p) {
        const pack_part& part = a.parts[p];
        if (part.packet_bytes == 16) {
            pack_section<bytes16>(part, to, first, step);
        } else if (part.packet_bytes == 8) {
            pack_section<int64_t>(part, to, first, step);
        } else {
            pack_section<int32_t>(part, to, first, step);
        }
    }
}
JALI_KERNEL(pack_halos, pack_arguments) {
    // with fewer blocks than were dealt out, each takes several turns
    for (int64_t m = 0; m < a.count; ++m) {
        const pack_message& message = a.messages[m];
        const int64_t epoch = *a.epoch;
        int64_t mine = 0;
        for (int64_t b = block_in_grid(); b < message.first_block + message.blocks; b += blocks_in_grid()) {
            if (b < message.first_block) continue;
            if (epoch > 1) {
                if (thread_in_block() == 0) wait_until(message.consumed, epoch - 1, a.abandoned);
                meet();
            }
            char* to = message.to + (epoch & 1) * message.slot_bytes;
            const int64_t first = (b - message.first_block) * threads_in_block() + thread_in_block();
            const int64_t step = message.blocks * threads_in_block();
            pack_parts(a, message, to, first, step);
            ++mine;
        }
        if (mine > 0) {
            meet();
            // one fence for a block, and one that reaches other devices for all of them: each sees what it counted
            if (thread_in_block() == 0) {
                bool last = false;
                fence_device();
                for (int64_t k = 0; k < mine; ++k) last = count_atomically(a.retired + m) + 1 == message.blocks;
                if (last) {
                    a.retired[m] = 0;
                    publish(message.arrived, epoch + 1);
                }
            }
        }
    }
}

// Into this device's own memory; somebody else carries the messages from there.
JALI_KERNEL(gather_halos, pack_arguments) {
    for (int64_t m = 0; m < a.count; ++m) {
        const pack_message& message = a.messages[m];
        for (int64_t b = block_in_grid(); b < message.first_block + message.blocks; b += blocks_in_grid()) {
            if (b < message.first_block) continue;
            const int64_t first = (b - message.first_block) * threads_in_block() + thread_in_block();
            pack_parts(a, message, message.to, first, message.blocks * threads_in_block());
        }
    }
}

// Messages that were brought by copy engines have arrived.
struct signal_arguments {
    const pack_message* messages;
    int64_t count;
    const int64_t* epoch;
};
JALI_KERNEL(signal_halos, signal_arguments) {
    JALI_FOR_EACH(m, 0, a.count) publish(a.messages[m].arrived, *a.epoch + 1);
}
// Waits until copy engines may write into the receivers' slots.
struct await_arguments {
    const pack_message* messages;
    int64_t count;
    const int64_t* epoch;
    const int64_t* abandoned;
};
JALI_KERNEL(await_slots, await_arguments) {
    JALI_FOR_EACH(m, 0, a.count)
        if (*a.epoch > 1) wait_until(a.messages[m].consumed, *a.epoch - 1, a.abandoned);
}

struct receive_section {
    void* to;
    int64_t offset, bytes; // in the message; a multiple of 16
};
struct receive_message {
    const char* from; // in slot 0 of this device's mailbox
    int64_t slot_bytes;
    int64_t first_section, sections;
    int64_t first_block, blocks;
    const int64_t* arrived;
};
struct receive_arguments {
    const receive_section* sections;
    const receive_message* messages;
    int64_t count;
    int64_t* epoch;
    int64_t* retired;         // blocks that are done, zero before and after
    int64_t* const* senders;  // the words of all who may send: how many exchanges this device has consumed
    int64_t senders_count;
    int64_t last; // not 0: with this launch the exchange is consumed
    const int64_t* abandoned;
};
JALI_KERNEL(receive_halos, receive_arguments) {
    const int64_t epoch = *a.epoch;
    for (int64_t m = 0; m < a.count; ++m) {
        const receive_message& message = a.messages[m];
        for (int64_t b = block_in_grid(); b < message.first_block + message.blocks; b += blocks_in_grid()) {
            if (b < message.first_block) continue;
            if (thread_in_block() == 0) wait_until(message.arrived, epoch + 1, a.abandoned);
            meet();
            const char* from = message.from + (epoch & 1) * message.slot_bytes;
            for (int64_t s = message.first_section; s < message.first_section + message.sections; ++s) {
                const receive_section& section = a.sections[s];
                const bytes16* source = (const bytes16*)(from + section.offset);
                bytes16* to = (bytes16*)section.to;
                const int64_t step = message.blocks * threads_in_block();
                for (int64_t k = (b - message.first_block) * threads_in_block() + thread_in_block();
                     k < section.bytes / 16; k += step)
                    to[k] = fresh(source + k);
            }
        }
    }
    meet();
    if (thread_in_block() != 0) return;
    fence_device();
    if (count_atomically(a.retired) + 1 == blocks_in_grid()) {
        *a.retired = 0;
        if (a.last == 0) return;
        *a.epoch = epoch + 1;
        for (int64_t k = 0; k < a.senders_count; ++k) publish(a.senders[k], epoch + 1);
    }
}
