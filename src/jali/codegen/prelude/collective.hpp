// A rank's part of a collective, from beginning to end in one launch: what core/running/device_program.hpp
// compiles. elements.hpp says how elements are combined, and JALI_STORED, JALI_VALUE and JALI_OPERATION
// which; with JALI_CHECKED numbers that overflow a 16-bit type are counted. JALI_FLAGGED is for plans of
// flagged messages, without it they are slotted.
//
// A block is a channel: it does slice `channel` of every iteration, and has queues of its own from and to
// every other rank. A queue is a ring of slots in the memory of the receiver. Messages between two channels
// are numbered for ever; numbers live in device memory, so that a launch may be part of a graph. *Slotted*
// messages are announced by a word of their slot, behind a fence; *flagged* ones carry their number beside
// every 4 bytes, so that the reader sees by itself what is there. Either way the reader says how many it has
// read, and their slots are free; of flagged ones only now and then, since there are more slots than a launch
// takes, and a launch ends sooner without.

struct operand {
    int64_t offset;
    int32_t where, packet; // a buffer, or ~peer for a message and its number in an iteration
};
struct queue_action {
    int32_t kind, peer, packet; // 0: announce, or wait for an arrival; 1: free, or wait for room
    int32_t ahead;              // for the message of the next iteration
};
struct instruction {
    operand to;
    int64_t bytes, chunk;
    int32_t first_source, sources, first_action, actions, first_wait, waits, meets, divide_by;
    int64_t
        together; // of flagged messages, in the first of instructions that do not need each other: how many
};
const int SMALL_TABLE_WORDS = 160;
struct collective_arguments {
    char* buffers[16];
    const int64_t*
        table; // instructions, sources, actions, waits, then two int32_t per rank: messages per iteration
    int64_t table_words, instructions, sources, actions, waits, first_last_action;
    int64_t iterations, channels, ranks, rank;
    int64_t leads; // instructions at the beginning that send what needs nothing, one iteration ahead of the
                   // others
    char* const* memories; // of all ranks, as this device sees them
    char* own_memory;
    int64_t arrived, freed; // bytes to the words [channel][sender][slot] and [channel][rank] in a memory
    int64_t queues;         // bytes to [channel][sender][slot]
    int64_t slots, slot_bytes;
    int64_t* numbers; // [channel][rank][2]: messages sent and received so far
    int64_t* watch;
    int64_t* overflows;
    int64_t small_table[SMALL_TABLE_WORDS]; // the table, if it is no larger: then it need not be fetched
};
const int MOST_RANKS = 64, TABLE_WORDS = 1024;

typedef JALI_STORED stored;
typedef JALI_VALUE value;
const int PER_PACKET = 16 / sizeof(stored);
union packet16 {
    bytes16 bytes;
    stored element[PER_PACKET];
    JALI_MEMBER packet16() {}
};

struct values {
    value of[PER_PACKET];
};
JALI_INLINE void begin_values(values& v, const bytes16& from) {
    packet16 q;
    q.bytes = from;
    JALI_UNROLL
    for (int k = 0; k < PER_PACKET; ++k) v.of[k] = widened(q.element[k]);
}
JALI_INLINE void combine_values(values& v, const bytes16& from) {
    packet16 q;
    q.bytes = from;
    JALI_UNROLL
    for (int k = 0; k < PER_PACKET; ++k) v.of[k] = JALI_OPERATION::of(v.of[k], widened(q.element[k]));
}
JALI_INLINE bytes16 end_values(values& v, int divide_by, int64_t* overflows) {
    packet16 q;
    JALI_UNROLL
    for (int k = 0; k < PER_PACKET; ++k) {
        const value x = divided(v.of[k], divide_by);
        narrow(x, q.element[k]);
#if defined(JALI_CHECKED)
        if (saturated(x, q.element[k])) add_atomically(overflows, 1);
#endif
    }
    return q.bytes;
}

// 16 bytes of which `valid` are there, at any address.
union words_and_bytes {
    bytes16 all;
    uint32_t word[4];
    char byte[16];
    JALI_MEMBER words_and_bytes() {}
};
JALI_INLINE bytes16 load_words(const char* from, int64_t valid) {
    words_and_bytes q;
    JALI_UNROLL
    for (int k = 0; k < 4; ++k) q.word[k] = 4 * k < valid ? ((const uint32_t*)from)[k] : 0;
    return q.all;
}
JALI_INLINE void store_words(char* to, const bytes16& what, int64_t valid) {
    words_and_bytes q;
    q.all = what;
    JALI_UNROLL
    for (int k = 0; k < 4; ++k)
        if (4 * k < valid) ((uint32_t*)to)[k] = q.word[k];
}
JALI_OUT_OF_LINE bytes16 load_in_part(const char* from, int64_t valid) {
    words_and_bytes q;
    q.all = bytes16{0, 0};
    JALI_UNROLL
    for (int k = 0; k < 16; ++k)
        if (k < valid) q.byte[k] = from[k];
    return q.all;
}
JALI_OUT_OF_LINE void store_in_part(char* to, const bytes16& what, int64_t valid) {
    words_and_bytes q;
    q.all = what;
    JALI_UNROLL
    for (int k = 0; k < 16; ++k)
        if (k < valid) to[k] = q.byte[k];
}

// Where an operand's slice of this iteration begins, and the flag of a message.
struct located {
    char* at;
    uint32_t flag;
    bool message;
};

struct channel_state {
    const collective_arguments* a;
    const instruction* instructions;
    const operand* sources;
    const queue_action *actions, *waits;
    const int32_t* per_iteration; // [rank][2]: sent, received
    const int64_t* numbers;       // [rank][2] at the beginning
    char* const* memories;        // [rank]
    // Some thread of the block has, so that nothing is signalled or counted any more. On devices at a fixed
    // place: a pointer to it would be one register too many.
#if defined(JALI_ONE_THREAD)
    mutable bool gave_up_here = false;
    JALI_MEMBER bool& gave_up() const { return gave_up_here; }
#else
    JALI_MEMBER bool& gave_up() const {
        JALI_SHARED bool some;
        return some;
    }
#endif
    int64_t channel, iteration;

    JALI_MEMBER int64_t number(int peer, int packet, int received) const {
        return numbers[2 * peer + received] + iteration * per_iteration[2 * peer + received] + packet;
    }
    JALI_MEMBER char* slot(int owner, int sender, int64_t number) const {
        return memories[owner] + a->queues +
               ((channel * a->ranks + sender) * a->slots + (number & (a->slots - 1))) * a->slot_bytes;
    }
    JALI_MEMBER int64_t* arrived(int owner, int sender, int64_t number) const {
        return (int64_t*)(memories[owner] + a->arrived) + (channel * a->ranks + sender) * a->slots +
               (number & (a->slots - 1));
    }
    JALI_MEMBER int64_t* freed(int owner, int by) const {
        return (int64_t*)(memories[owner] + a->freed) + channel * a->ranks + by;
    }
    JALI_MEMBER located locate(const operand& o, int64_t begin, bool target) const {
        if (o.where >= 0) return {a->buffers[o.where] + o.offset + begin, 0, false};
        const int peer = ~o.where;
        const int64_t n = number(peer, o.packet, target ? 0 : 1);
        return {target ? slot(peer, int(a->rank), n) : slot(int(a->rank), peer, n), uint32_t(n + 1), true};
    }
    JALI_MEMBER void act(const queue_action& d) const {
        if (iteration + d.ahead >= a->iterations || gave_up()) return;
        const int64_t n = number(d.peer, d.packet, d.kind) + d.ahead * per_iteration[2 * d.peer];
        const int me = int(a->rank);
        if (d.kind == 0) {
            signal(arrived(d.peer, me, n), n + 1);
        } else {
            signal_without_stores(freed(d.peer, me), n + 1);
        }
    }
    JALI_MEMBER void wait_for(const queue_action& d) const {
        const int64_t n = number(d.peer, d.packet, d.kind == 0 ? 1 : 0);
        const int me = int(a->rank);
        if (d.kind == 0) {
            if (!wait(arrived(me, d.peer, n), n + 1, IN_COLLECTIVE, a->watch)) gave_up() = true;
        } else if (n >= a->slots) {
            if (!wait(freed(me, d.peer), n + 1 - a->slots, IN_COLLECTIVE, a->watch)) gave_up() = true;
        }
    }
};

JALI_INLINE bool at_packet(const char* address) {
    return uint64_t(address) % 16 == 0;
}

// A packet of a region, of which `valid` bytes are there.
JALI_INLINE bytes16 load_packet(const char* from, int64_t packet, int64_t valid) {
    if (valid == 16 && at_packet(from)) return ((const bytes16*)from)[packet];
    if ((uint64_t(from) | uint64_t(valid)) % 4 == 0) return load_words(from + 16 * packet, valid);
    return load_in_part(from + 16 * packet, valid);
}
JALI_INLINE void store_packet(char* to, int64_t packet, const bytes16& q, int64_t valid) {
    if (valid == 16 && at_packet(to)) {
        ((bytes16*)to)[packet] = q;
    } else if ((uint64_t(to) | uint64_t(valid)) % 4 == 0) {
        store_words(to + 16 * packet, q, valid);
    } else {
        store_in_part(to + 16 * packet, q, valid);
    }
}

#if defined(JALI_FLAGGED)

// Packets of a slice from `first` on in steps; any number of sources, anywhere.
JALI_INLINE void do_flagged_slice(const channel_state& s, const instruction& i, int64_t begin, int64_t bytes,
                                  int64_t first, int64_t step) {
#if defined(JALI_MOVES)
    const int AT_ONCE = 1;
#else
    const int AT_ONCE = 4; // messages that are looked at together
#endif
    const located to = s.locate(i.to, begin, true);
    const operand* sources = s.sources + i.first_source;
    for (int64_t p = first; p < (bytes + 15) / 16; p += step) {
        const int64_t valid = bytes - 16 * p < 16 ? bytes - 16 * p : 16;
        values v;
        bytes16 q[AT_ONCE];
        for (int k = 0; k < i.sources; k += AT_ONCE) {
            located from[AT_ONCE];
            JALI_UNROLL
            for (int u = 0; u < AT_ONCE; ++u) {
                from[u].message = false;
                if (k + u >= i.sources) continue;
                from[u] = s.locate(sources[k + u], begin, false);
                if (!from[u].message) q[u] = load_packet(from[u].at, p, valid);
            }
            const auto check = [&] {
                bool there = true;
                JALI_UNROLL
                for (int u = 0; u < AT_ONCE; ++u)
                    if (from[u].message) there &= read_flagged(from[u].at + 32 * p, from[u].flag, q[u]);
                return there;
            };
            const auto missing = [&](uint32_t& flag) {
                const char* place = nullptr;
                JALI_UNROLL
                for (int u = 0; u < AT_ONCE; ++u) {
                    if (!from[u].message || read_flagged(from[u].at + 32 * p, from[u].flag, q[u])) continue;
                    place = from[u].at;
                    flag = from[u].flag;
                }
                return place;
            };
            if (!wait_for_flags(IN_COLLECTIVE, s.a->watch, check, missing)) {
                s.gave_up() = true;
                return;
            }
            if (i.sources == 1 && i.divide_by == 1) break; // only moves
            JALI_UNROLL
            for (int u = 0; u < AT_ONCE; ++u) {
                if (k + u == 0) {
                    begin_values(v, q[0]);
                } else if (k + u < i.sources) {
                    combine_values(v, q[u]);
                }
            }
        }
        if (i.sources > 1 || i.divide_by != 1) q[0] = end_values(v, i.divide_by, s.a->overflows);
        if (to.message) {
            store_flagged(to.at + 32 * p, q[0], to.flag);
        } else {
            store_packet(to.at, p, q[0], valid);
        }
    }
}
// Instructions that do not need each other are dealt out to the warps of the block.
JALI_INLINE void do_flagged(const channel_state& s) {
    const int width = lanes_of_warp(), thread = int(thread_in_block());
    const int warps = int(threads_in_block()) / width, warp = thread / width;
    for (int64_t round = 0; round < s.a->instructions;) {
        const int together = int(s.instructions[round].together);
        if (round > 0) meet();
        for (int k = warp % together; k < together; k += warps) {
            const instruction& i = s.instructions[round + k];
            const int64_t begin = s.channel * i.chunk;
            // nothing is in this slice, though its message is counted; or nothing that could be trusted
            if (begin >= i.bytes || s.gave_up()) continue;
            const int helpers =
                warps > together ? (warps - 1 - k) / together + 1 : 1; // warps that do this one
            do_flagged_slice(s, i, begin, i.bytes - begin < i.chunk ? i.bytes - begin : i.chunk,
                             int64_t(warp / together) * width + thread % width, int64_t(helpers) * width);
        }
        round += together;
    }
}

#else

// Packets of a slice, each by the thread that has it in every instruction: what another instruction left
// there was left by the same thread. Any number of sources, anywhere.
JALI_INLINE bytes16 take(const channel_state& s, const operand& o, int64_t begin, int64_t packet,
                         int64_t valid) {
    const located from = s.locate(o, begin, false);
    return from.message ? fresh((const bytes16*)from.at + packet) : load_packet(from.at, packet, valid);
}
JALI_INLINE void do_any_slice(const channel_state& s, const instruction& i, int64_t begin, int64_t bytes) {
    const located to = s.locate(i.to, begin, true);
    const operand* sources = s.sources + i.first_source;
    for (int64_t p = thread_in_block(); p < (bytes + 15) / 16; p += threads_in_block()) {
        const int64_t valid = bytes - 16 * p < 16 ? bytes - 16 * p : 16;
        bytes16 q = take(s, sources[0], begin, p, valid);
        if (i.sources > 1 || i.divide_by != 1) {
            values v;
            begin_values(v, q);
            for (int k = 1; k < i.sources; ++k) combine_values(v, take(s, sources[k], begin, p, valid));
            q = end_values(v, i.divide_by, s.a->overflows);
        }
        if (to.message) {
            ((bytes16*)to.at)[p] = q;
        } else {
            store_packet(to.at, p, q, valid);
        }
    }
}

// The same for whole packets and a known number of sources, several packets at a time.
template <int N>
JALI_INLINE void do_slice(const channel_state& s, const instruction& i, int64_t begin, int64_t bytes) {
    const int TOGETHER = N == 1 ? 8 : PER_PACKET > 4 || N > 4 ? 1 : 4 / N;
    const int64_t packets = bytes / 16, step = threads_in_block();
    bytes16* to = (bytes16*)s.locate(i.to, begin, true).at;
    const bytes16* from[N];
    JALI_UNROLL
    for (int k = 0; k < N; ++k)
        from[k] = (const bytes16*)s.locate(s.sources[i.first_source + k], begin, false).at;
    const bool moves = N == 1 && i.divide_by == 1;
    for (int64_t first = thread_in_block(); first < packets; first += TOGETHER * step) {
        bytes16 q[TOGETHER][N];
        JALI_UNROLL
        for (int u = 0; u < TOGETHER; ++u) {
            const int64_t p = first + u * step;
            if (p < packets) {
                JALI_UNROLL
                for (int k = 0; k < N; ++k) q[u][k] = fresh(from[k] + p);
            }
        }
        JALI_UNROLL
        for (int u = 0; u < TOGETHER; ++u) {
            const int64_t p = first + u * step;
            if (p >= packets) break;
            if (moves) {
                to[p] = q[u][0];
                continue;
            }
            values v;
            begin_values(v, q[u][0]);
            JALI_UNROLL
            for (int k = 1; k < N; ++k) combine_values(v, q[u][k]);
            to[p] = end_values(v, i.divide_by, s.a->overflows);
        }
    }
}
JALI_INLINE void do_instruction(const channel_state& s, const instruction& i) {
    if (i.meets != 0) {
        meet();
        for (int64_t k = thread_in_block(); k < i.actions; k += threads_in_block())
            s.act(s.actions[i.first_action + k]);
        for (int64_t k = thread_in_block(); k < i.waits; k += threads_in_block())
            s.wait_for(s.waits[i.first_wait + k]);
        meet();
    }
    const int64_t begin = (s.iteration * s.a->channels + s.channel) * i.chunk;
    if (begin >= i.bytes) return; // nothing is in this slice, though its message is counted
    const int64_t bytes = i.bytes - begin < i.chunk ? i.bytes - begin : i.chunk;
    // messages always begin at multiples of 16 bytes
    bool whole = bytes % 16 == 0;
    if (i.to.where >= 0) whole = whole && at_packet(s.a->buffers[i.to.where] + i.to.offset);
    for (int k = 0; k < i.sources; ++k) {
        const operand& o = s.sources[i.first_source + k];
        if (o.where >= 0) whole = whole && at_packet(s.a->buffers[o.where] + o.offset);
    }
    if (whole && i.sources == 1) {
        do_slice<1>(s, i, begin, bytes);
#if !defined(JALI_MOVES)
    } else if (whole && i.sources == 2) {
        do_slice<2>(s, i, begin, bytes);
    } else if (whole && i.sources == 4) {
        do_slice<4>(s, i, begin, bytes);
    } else if (whole && i.sources == 8) {
        do_slice<8>(s, i, begin, bytes);
#endif
    } else {
        do_any_slice(s, i, begin, bytes);
    }
}
JALI_INLINE void do_slotted(channel_state& s) {
    const collective_arguments& a = *s.a;
    // all that is sent without waiting for others goes ahead, so that it travels while the iteration before
    // is waited for
    s.iteration = 0;
    for (int64_t k = 0; k < a.leads; ++k) do_instruction(s, s.instructions[k]);
    if (a.leads > 0) {
        meet();
        s.iteration = -1;
        for (int64_t k = thread_in_block(); k < a.actions; k += threads_in_block())
            if (s.actions[k].ahead != 0) s.act(s.actions[k]);
    }
    for (int64_t now = 0; now < a.iterations; ++now) {
        s.iteration = now + 1;
        if (a.leads > 0 && s.iteration < a.iterations)
            for (int64_t k = 0; k < a.leads; ++k) do_instruction(s, s.instructions[k]);
        s.iteration = now;
        for (int64_t k = a.leads; k < a.instructions; ++k) do_instruction(s, s.instructions[k]);
        meet();
        for (int64_t k = a.first_last_action + thread_in_block(); k < a.actions; k += threads_in_block())
            s.act(s.actions[k]);
    }
}

#endif

JALI_EARLY_KERNEL(collective, collective_arguments) {
    JALI_SHARED int64_t table_here[TABLE_WORDS];
    JALI_SHARED int64_t numbers[2 * MOST_RANKS];
    JALI_SHARED char* memories[MOST_RANKS];
    for (int64_t channel = block_in_grid(); channel < a.channels; channel += blocks_in_grid()) {
        channel_state s;
        const int64_t* table = a.table;
        if (a.table_words <= TABLE_WORDS) {
            const int64_t* from = a.table_words <= SMALL_TABLE_WORDS ? a.small_table : a.table;
            for (int64_t k = thread_in_block(); k < a.table_words; k += threads_in_block())
                table_here[k] = from[k];
            table = table_here;
        }
        for (int64_t k = thread_in_block(); k < a.ranks; k += threads_in_block()) memories[k] = a.memories[k];
        if (thread_in_block() == 0) s.gave_up() = false;
        meet();
        const int32_t* per_iteration = (const int32_t*)(table + a.table_words - a.ranks);
        after_previous();
        int64_t* lasting = a.numbers + channel * 2 * a.ranks;
        for (int64_t k = thread_in_block(); k < a.ranks; k += threads_in_block()) {
            numbers[2 * k] = lasting[2 * k];
            numbers[2 * k + 1] = lasting[2 * k + 1];
#if defined(JALI_FLAGGED)
            // all messages fit their queues: one look at the beginning tells whether there is room
            const int64_t* freed = (const int64_t*)(a.own_memory + a.freed) + channel * a.ranks + k;
            const int64_t wanted = numbers[2 * k] + per_iteration[2 * k] - a.slots;
            if (per_iteration[2 * k] > 0 && seen(freed) < wanted &&
                !wait(freed, wanted, IN_COLLECTIVE, a.watch))
                s.gave_up() = true;
#endif
        }
        meet();
        s.a = &a;
        s.instructions = (const instruction*)table;
        s.sources = (const operand*)(s.instructions + a.instructions);
        s.actions = (const queue_action*)(s.sources + a.sources);
        s.waits = s.actions + a.actions;
        s.per_iteration = (const int32_t*)(s.waits + a.waits);
        s.numbers = numbers;
        s.memories = memories;
        s.channel = channel;
        s.iteration = 0;
#if defined(JALI_FLAGGED)
        do_flagged(s);
#else
        do_slotted(s);
#endif
        let_next_begin(); // nobody is waited for any more
        meet();
        for (int64_t k = thread_in_block(); k < a.ranks && !s.gave_up(); k += threads_in_block()) {
            const int64_t received = numbers[2 * k + 1] + a.iterations * s.per_iteration[2 * k + 1];
            lasting[2 * k] = numbers[2 * k] + a.iterations * s.per_iteration[2 * k];
            lasting[2 * k + 1] = received;
#if defined(JALI_FLAGGED)
            const int64_t halves = received & ~(a.slots / 2 - 1); // slots are a power of two
            if (halves > numbers[2 * k + 1]) signal_without_stores(s.freed(int(k), int(a.rank)), halves);
#endif
        }
        meet();
    }
}
