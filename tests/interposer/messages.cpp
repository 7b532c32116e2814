// Messages of an MPI program whose buffers lie on the host and on devices as it comes: contents, statuses,
// and the bytes beside what arrived are checked. Arguments: seed, rounds. Prints "same" and how many.
#include "memory.hpp"

#include <mpi.h>

#include <algorithm>
#include <memory>
#include <random>

using Bytes = std::vector<unsigned char>;

int rank, ranks;
test::Driver* driver;

[[noreturn]] void wrong(const std::string& what) {
    std::fprintf(stderr, "rank %d: %s\n", rank, what.c_str());
    MPI_Abort(MPI_COMM_WORLD, 4);
    std::abort();
}
void expect(bool holds, const std::string& what) {
    if (!holds) wrong(what);
}

Bytes content(int from, int number, int bytes) {
    Bytes all(bytes);
    std::mt19937 random(static_cast<unsigned>(from * 7919 + number));
    for (unsigned char& byte : all) byte = static_cast<unsigned char>(random());
    return all;
}
constexpr unsigned char untouched = 0x5a;

std::unique_ptr<test::Buffer> buffer(bool on_device, const Bytes& bytes) {
    return std::make_unique<test::Buffer>(on_device ? driver : nullptr, bytes);
}

// Every rank sends to the next, and receives from the one before, many messages of many lengths, in requests
// that are waited for in every way there is.
void round_of_requests(unsigned seed) {
    std::mt19937 common(seed), mine(seed * 131 + static_cast<unsigned>(rank));
    const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    const int messages = 1 + static_cast<int>(common() % 9);
    std::vector<int> lengths, rooms;
    for (int k = 0; k < messages; ++k) {
        const int most[] = {1, 9, 300, 5000, 70000, 300000};
        lengths.push_back(static_cast<int>(common() % most[common() % 6]));
        rooms.push_back(lengths.back() +
                        static_cast<int>(common() % 2 * 40)); // a message may be shorter than there is room
    }
    const unsigned how = common() % 8;
    const bool any_source = common() % 3 == 0, begun_late = common() % 2 == 0;
    std::vector<std::unique_ptr<test::Buffer>> in, out;
    std::vector<MPI_Request> requests;
    const auto send = [&] {
        for (int k = 0; k < messages; ++k) {
            out.push_back(buffer(mine() % 2, content(rank, k, lengths[k])));
            requests.emplace_back();
            if (k % 3 == 1)
                MPI_Issend(out[k]->data(), lengths[k], MPI_BYTE, to, k, MPI_COMM_WORLD, &requests.back());
            else
                MPI_Isend(out[k]->data(), lengths[k], MPI_BYTE, to, k, MPI_COMM_WORLD, &requests.back());
        }
    };
    if (begun_late) send();
    const std::size_t first = requests.size();
    for (int k = 0; k < messages; ++k) {
        in.push_back(buffer(mine() % 2, Bytes(rooms[k] + 8, untouched)));
        requests.emplace_back();
        MPI_Irecv(in[k]->data(), rooms[k], MPI_BYTE, any_source ? MPI_ANY_SOURCE : from, k, MPI_COMM_WORLD,
                  &requests.back());
    }
    if (!begun_late) send();
    const int all = static_cast<int>(requests.size());
    std::vector<MPI_Status> statuses(all);
    std::vector<int> indices(all);
    int done = 0, flag = 0, index = 0;
    bool have_statuses = true;
    switch (how) {
    case 0:
        MPI_Waitall(all, requests.data(), statuses.data());
        break;
    case 1:
        MPI_Waitall(all, requests.data(), MPI_STATUSES_IGNORE);
        have_statuses = false;
        break;
    case 2:
        for (int k = all - 1; k >= 0; --k) MPI_Wait(&requests[k], &statuses[k]);
        break;
    case 3:
        for (int left = all; left > 0; --left) {
            MPI_Status status;
            MPI_Waitany(all, requests.data(), &index, &status);
            statuses[index] = status;
        }
        break;
    case 4: {
        std::vector<MPI_Status> some(all);
        for (int left = all; left > 0; left -= done) {
            MPI_Waitsome(all, requests.data(), &done, indices.data(), some.data());
            for (int k = 0; k < done; ++k) statuses[indices[k]] = some[k];
        }
        break;
    }
    case 5:
        while (!flag) MPI_Testall(all, requests.data(), &flag, statuses.data());
        break;
    case 6: {
        std::vector<MPI_Status> some(all);
        for (int left = all; left > 0;) {
            MPI_Testsome(all, requests.data(), &done, indices.data(), some.data());
            for (int k = 0; k < done; ++k) statuses[indices[k]] = some[k];
            left -= done;
            MPI_Status status;
            MPI_Testany(all, requests.data(), &index, &flag, &status);
            if (flag && index != MPI_UNDEFINED) {
                statuses[index] = status;
                --left;
            }
        }
        break;
    }
    default:
        for (int k = 0; k < all; ++k) {
            for (flag = 0; !flag;) MPI_Request_get_status(requests[k], &flag, &statuses[k]);
            const int number = k - static_cast<int>(first);
            if (number >= 0 && number < messages && begun_late) { // it is there though the request still is
                Bytes result = in[number]->contents();
                result.resize(lengths[number]);
                expect(result == content(from, number, lengths[number]),
                       "what a status says is complete is not there");
            }
            for (flag = 0; !flag;) MPI_Test(&requests[k], &flag, MPI_STATUS_IGNORE);
        }
    }
    for (int k = 0; k < all; ++k) expect(requests[k] == MPI_REQUEST_NULL, "a request is left");
    for (int k = 0; k < messages; ++k) {
        Bytes wanted = content(from, k, lengths[k]);
        wanted.resize(rooms[k] + 8, untouched);
        expect(in[k]->contents() == wanted,
               "message " + std::to_string(k) + " of " + std::to_string(lengths[k]) +
                   " bytes has other contents, waited for in way " + std::to_string(how));
        if (!have_statuses) continue;
        const MPI_Status& status = statuses[begun_late ? first + k : k];
        int count = -1;
        MPI_Get_count(&status, MPI_BYTE, &count);
        expect(count == lengths[k],
               "the status counts " + std::to_string(count) + " bytes of " + std::to_string(lengths[k]));
        expect(status.MPI_SOURCE == from && status.MPI_TAG == k, "the status names another message");
    }
}

// Calls that return when the message has come, and what looks at messages first.
void round_of_blocking(unsigned seed) {
    std::mt19937 common(seed), mine(seed * 137 + static_cast<unsigned>(rank));
    const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    const int length = static_cast<int>(common() % 20000), room = length + 16;
    auto out = buffer(mine() % 2, content(rank, 5, length)), in = buffer(mine() % 2, Bytes(room, untouched));
    Bytes wanted = content(from, 5, length);
    wanted.resize(room, untouched);
    MPI_Status status;
    int count = 0;
    MPI_Sendrecv(out->data(), length, MPI_BYTE, to, 3, in->data(), room, MPI_BYTE, from, 3, MPI_COMM_WORLD,
                 &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    expect(in->contents() == wanted && count == length, "Sendrecv");
    MPI_Sendrecv(out->data(), length, MPI_BYTE, MPI_PROC_NULL, 3, in->data(), room, MPI_BYTE, MPI_PROC_NULL,
                 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(in->contents() == wanted, "Sendrecv with nobody");

    auto both = buffer(mine() % 2, content(rank, 6, length));
    MPI_Sendrecv_replace(both->data(), length, MPI_BYTE, to, 4, from, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(both->contents() == content(from, 6, length), "Sendrecv_replace");

    const auto before = content(rank, 7, length);
    MPI_Request request;
    auto sent = buffer(mine() % 2, before);
    MPI_Isend(sent->data(), length, MPI_BYTE, to, 5, MPI_COMM_WORLD, &request);
    auto probed = buffer(mine() % 2, Bytes(room, untouched));
    if (common() % 2 == 0) {
        MPI_Probe(MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        expect(count == length && status.MPI_SOURCE == from, "Probe");
        MPI_Recv(probed->data(), room, MPI_BYTE, status.MPI_SOURCE, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Message message;
        MPI_Mprobe(from, 5, MPI_COMM_WORLD, &message, &status);
        if (common() % 2 == 0) {
            MPI_Mrecv(probed->data(), room, MPI_BYTE, &message, &status);
        } else {
            MPI_Request second;
            MPI_Imrecv(probed->data(), room, MPI_BYTE, &message, &second);
            MPI_Wait(&second, &status);
        }
        MPI_Get_count(&status, MPI_BYTE, &count);
        expect(count == length, "Mrecv");
    }
    wanted = content(from, 7, length);
    wanted.resize(room, untouched);
    expect(probed->contents() == wanted, "a message that was looked at first");
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

// Columns of a matrix that are received at once into the same rows: each writes its own bytes alone.
void round_of_columns(unsigned seed) {
    std::mt19937 common(seed), mine(seed * 139 + static_cast<unsigned>(rank));
    const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    const int rows = 1 + static_cast<int>(common() % 200), columns = 2 + static_cast<int>(common() % 6);
    MPI_Datatype column;
    MPI_Type_vector(rows, 1, columns, MPI_INT, &column);
    MPI_Type_commit(&column);
    std::vector<int> numbers(static_cast<std::size_t>(rows) * columns);
    const auto fill = [&](int of) {
        for (std::size_t k = 0; k < numbers.size(); ++k) numbers[k] = of * 100000 + static_cast<int>(k);
        Bytes bytes(numbers.size() * sizeof(int));
        std::memcpy(bytes.data(), numbers.data(), bytes.size());
        return bytes;
    };
    auto out = buffer(mine() % 2, fill(rank)),
         in = buffer(mine() % 2, Bytes(numbers.size() * sizeof(int), untouched));
    std::vector<MPI_Request> requests(2 * columns);
    for (int c = 0; c < columns; ++c)
        MPI_Irecv(in->data() + sizeof(int) * c, 1, column, from, c, MPI_COMM_WORLD, &requests[c]);
    for (int c = 0; c < columns; ++c)
        MPI_Isend(out->data() + sizeof(int) * c, 1, column, to, c, MPI_COMM_WORLD, &requests[columns + c]);
    MPI_Type_free(&column);
    std::shuffle(requests.begin(), requests.end(), mine);
    for (MPI_Request& request : requests) MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(in->contents() == fill(from), "columns of a matrix");
}

// Requests that are used again, given up, or withdrawn.
void round_of_fates(unsigned seed) {
    std::mt19937 common(seed), mine(seed * 149 + static_cast<unsigned>(rank));
    const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    const int length = 1 + static_cast<int>(common() % 40000);
    auto out = buffer(mine() % 2, content(rank, 0, length)),
         in = buffer(mine() % 2, Bytes(length, untouched));
    MPI_Request prepared[2];
    MPI_Send_init(out->data(), length, MPI_BYTE, to, 1, MPI_COMM_WORLD, &prepared[0]);
    MPI_Recv_init(in->data(), length, MPI_BYTE, from, 1, MPI_COMM_WORLD, &prepared[1]);
    for (int again = 0; again < 3; ++again) {
        out->assign(content(rank, again, length));
        MPI_Startall(2, prepared);
        MPI_Waitall(2, prepared, MPI_STATUSES_IGNORE);
        expect(in->contents() == content(from, again, length), "a message that is sent again");
        expect(prepared[0] != MPI_REQUEST_NULL, "a prepared request is gone");
    }
    MPI_Request_free(&prepared[0]);
    MPI_Request_free(&prepared[1]);

    // given up: it arrives all the same
    MPI_Request request;
    MPI_Isend(out->data(), length, MPI_BYTE, to, 2, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
    expect(request == MPI_REQUEST_NULL, "a request that was freed is there");
    MPI_Recv(in->data(), length, MPI_BYTE, from, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    expect(in->contents() == content(from, 2, length), "a message whose request was given up");

    // withdrawn: nothing is written
    auto quiet = buffer(mine() % 2, Bytes(length, untouched));
    MPI_Irecv(quiet->data(), length, MPI_BYTE, from, 999, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Status status;
    int cancelled = 0;
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    expect(cancelled && quiet->contents() == Bytes(length, untouched), "a message that was withdrawn");
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int count, char** words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    driver = test::Driver::of(rank);
    const unsigned seed = static_cast<unsigned>(std::atoi(words[1]));
    const int rounds = std::atoi(words[2]);
    for (int k = 0; k < rounds; ++k) {
        const unsigned of_round = seed * 1000u + static_cast<unsigned>(k);
        round_of_requests(of_round);
        round_of_blocking(of_round);
        round_of_columns(of_round);
        round_of_fates(of_round);
    }
    MPI_Finalize();
    if (rank == 0) std::printf("same %d\n", rounds);
    return 0;
}
