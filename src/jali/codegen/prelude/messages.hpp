// Messages between devices that reach each other's memory; see core/peers/message_kernels.hpp.
//
// The receiver says at the sender for how many starts its array may be written (`ready`, a credit), the
// sender puts the bytes there and says at the receiver how many have arrived. Both count starts in a word of
// their own, so that a launch may be part of a graph. A launch first offers arrays, then sends, then waits
// for what arrives, as far as it is told to.

const int MESSAGES_OF_LAUNCH = 16;
const int64_t GRANT_CREDIT = 1, TAKE = 2;       // steps
const int64_t AWAIT = 1, PUT = 2, ANNOUNCE = 4; // roles

struct message_in {
    int64_t* ready; // at the sender
    const int64_t* arrived;
    int64_t* count;
};
struct message_out {
    const char* from;
    char* to;
    int64_t bytes;
    const int64_t* ready;
    int64_t* arrived; // at the receiver
    int64_t* count;
    int64_t* done; // blocks that have put their part; zero before and after
    int64_t roles;
    int64_t unit; // bytes that may be moved at once
    int64_t first_block, blocks;
};
struct message_arguments {
    int64_t incoming, outgoing, steps;
    int64_t* watch;
    message_in in[MESSAGES_OF_LAUNCH];
    message_out out[MESSAGES_OF_LAUNCH];
};

template <class Unit>
JALI_INLINE void put_units(const message_out& message, int64_t first, int64_t step) {
    const Unit* from = (const Unit*)message.from;
    Unit* to = (Unit*)message.to;
    const int64_t count = message.bytes / int64_t(sizeof(Unit));
    int64_t i = first;
    for (; i + 3 * step < count; i += 4 * step) { // loads of four before the first store
        Unit q[4];
        JALI_UNROLL
        for (int k = 0; k < 4; ++k) q[k] = from[i + k * step];
        JALI_UNROLL
        for (int k = 0; k < 4; ++k) to[i + k * step] = q[k];
    }
    for (; i < count; i += step) to[i] = from[i];
    // what is less than a unit
    for (i = count * int64_t(sizeof(Unit)) + first; i < message.bytes; i += step)
        message.to[i] = message.from[i];
}
JALI_INLINE void put_part(const message_out& message, int64_t first, int64_t step) {
    if (message.unit == 16) {
        put_units<bytes16>(message, first, step);
    } else if (message.unit == 8) {
        put_units<int64_t>(message, first, step);
    } else if (message.unit == 4) {
        put_units<int32_t>(message, first, step);
    } else if (message.unit == 2) {
        put_units<short>(message, first, step);
    } else {
        put_units<char>(message, first, step);
    }
}
JALI_KERNEL(pass_messages, message_arguments) {
    const bool leads = block_in_grid() == 0;
    if (leads && (a.steps & GRANT_CREDIT) != 0)
        for (int64_t m = thread_in_block(); m < a.incoming; m += threads_in_block())
            signal(a.in[m].ready, *a.in[m].count + 1);
    // with fewer blocks than were dealt out, each takes several turns
    for (int64_t m = 0; m < a.outgoing; ++m) {
        const message_out& message = a.out[m];
        int64_t b = block_in_grid();
        if (b < message.first_block)
            b += (message.first_block - b + blocks_in_grid() - 1) / blocks_in_grid() * blocks_in_grid();
        if (b >= message.first_block + message.blocks) continue;
        const int64_t number = *message.count + 1; // read before this block is counted, written after all are
        if ((message.roles & AWAIT) != 0 && !wait_in_block(message.ready, number, IN_PASS_MESSAGES, a.watch))
            return;
        int64_t mine = 0;
        for (; b < message.first_block + message.blocks; b += blocks_in_grid()) {
            if ((message.roles & PUT) != 0)
                put_part(message, (b - message.first_block) * threads_in_block() + thread_in_block(),
                         message.blocks * threads_in_block());
            ++mine;
        }
        if ((message.roles & ANNOUNCE) == 0 || !all_retired(message.done, message.blocks, mine)) continue;
        *message.count = number;
        signal(message.arrived, number);
    }
    if (leads && (a.steps & TAKE) != 0)
        for (int64_t m = thread_in_block(); m < a.incoming; m += threads_in_block()) {
            const int64_t number = *a.in[m].count + 1;
            if (wait(a.in[m].arrived, number, IN_PASS_MESSAGES, a.watch)) *a.in[m].count = number;
        }
}
