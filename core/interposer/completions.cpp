// Waits of programs for requests: MPI completes them, and data in staged memory are then copied to their
// destination. Without such requests calls are passed on unchanged.
#include "interposer/call.hpp"

#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

namespace jali::interposer {

namespace {

// Our entries for the requests of a call, while MPI has them, and statuses even where the program ignores
// them.
class Watched {
  public:
    Watched(int count, const void* requests, void* statuses, int rooms)
        : requests_(requests), statuses_(statuses) {
        for (int k = 0; k < count; ++k) {
            before_.push_back(mpi().handle_at(requests, k));
            taken_.push_back(take(before_.back()));
        }
        if (statuses == mpi().status_ignore) {
            own_.resize(mpi().status_bytes * static_cast<std::size_t>(rooms) + 16);
            statuses_ = own_.data();
        }
    }
    // Entries of incomplete requests are put back, as are prepared and only tested ones.
    ~Watched() {
        for (std::size_t k = 0; k < taken_.size(); ++k)
            if (taken_[k] && (taken_[k]->prepared ||
                              mpi().handle_at(requests_, static_cast<std::int64_t>(k)) == before_[k]))
                put_back(before_[k], std::move(*taken_[k]));
    }
    Watched(const Watched&) = delete;
    void* statuses() const { return statuses_; }

    // Request `k` is complete by status number `slot`; nothing is written if the status has an error.
    void complete(int k, int slot, int code) {
        const std::byte* status =
            static_cast<const std::byte*>(statuses_) + mpi().status_bytes * static_cast<std::size_t>(slot);
        int error = 0;
        if (code != 0) std::memcpy(&error, status + mpi().error_in_a_status, sizeof error);
        if (taken_[k] && error == 0) taken_[k]->complete(status);
        if (taken_[k] && error != 0 && error != mpi().error_pending) taken_[k]->done = true;
    }

  private:
    const void* requests_;
    void* statuses_;
    std::vector<H> before_;
    std::vector<std::optional<KeptRequest>> taken_;
    std::vector<std::byte> own_;
};

bool concerns_requests() {
    return !Inside::is() && any_kept();
}

template <class Made>
int guarded(const char* function, Made&& made) {
    const Inside inside;
    const CurrentContexts contexts;
    try {
        return made();
    } catch (const GpuError& error) {
        return failed(function, 0, error);
    }
}

// For a call with one code for many requests: whether statuses have codes of their own.
bool has_ended(int code) {
    return code == 0 || code == mpi().error_in_status;
}

struct Completions {
    static int Wait(void* request, void* status) {
        if (!concerns_requests()) return mpi().Wait(request, status);
        return guarded("MPI_Wait", [&] {
            Watched watched(1, request, status, 1);
            const int code = mpi().Wait(request, watched.statuses());
            if (code == 0) watched.complete(0, 0, 0);
            return code;
        });
    }
    static int Test(void* request, int* flag, void* status) {
        if (!concerns_requests()) return mpi().Test(request, flag, status);
        return guarded("MPI_Test", [&] {
            Watched watched(1, request, status, 1);
            const int code = mpi().Test(request, flag, watched.statuses());
            if (code == 0 && *flag) watched.complete(0, 0, 0);
            return code;
        });
    }
    static int Waitall(int count, void* requests, void* statuses) {
        if (!concerns_requests()) return mpi().Waitall(count, requests, statuses);
        return guarded("MPI_Waitall", [&] {
            Watched watched(count, requests, statuses, count);
            const int code = mpi().Waitall(count, requests, watched.statuses());
            if (has_ended(code))
                for (int k = 0; k < count; ++k) watched.complete(k, k, code);
            return code;
        });
    }
    static int Testall(int count, void* requests, int* flag, void* statuses) {
        if (!concerns_requests()) return mpi().Testall(count, requests, flag, statuses);
        return guarded("MPI_Testall", [&] {
            Watched watched(count, requests, statuses, count);
            const int code = mpi().Testall(count, requests, flag, watched.statuses());
            if ((code == 0 && *flag) || code == mpi().error_in_status)
                for (int k = 0; k < count; ++k) watched.complete(k, k, code);
            return code;
        });
    }
    static int Waitany(int count, void* requests, int* index, void* status) {
        if (!concerns_requests()) return mpi().Waitany(count, requests, index, status);
        return guarded("MPI_Waitany", [&] {
            Watched watched(count, requests, status, 1);
            const int code = mpi().Waitany(count, requests, index, watched.statuses());
            if (code == 0 && *index != mpi().undefined) watched.complete(*index, 0, 0);
            return code;
        });
    }
    static int Testany(int count, void* requests, int* index, int* flag, void* status) {
        if (!concerns_requests()) return mpi().Testany(count, requests, index, flag, status);
        return guarded("MPI_Testany", [&] {
            Watched watched(count, requests, status, 1);
            const int code = mpi().Testany(count, requests, index, flag, watched.statuses());
            if (code == 0 && *flag && *index != mpi().undefined) watched.complete(*index, 0, 0);
            return code;
        });
    }
    static int Waitsome(int count, void* requests, int* done, int* indices, void* statuses) {
        if (!concerns_requests()) return mpi().Waitsome(count, requests, done, indices, statuses);
        return guarded("MPI_Waitsome", [&] {
            Watched watched(count, requests, statuses, count);
            const int code = mpi().Waitsome(count, requests, done, indices, watched.statuses());
            some(watched, code, *done, indices);
            return code;
        });
    }
    static int Testsome(int count, void* requests, int* done, int* indices, void* statuses) {
        if (!concerns_requests()) return mpi().Testsome(count, requests, done, indices, statuses);
        return guarded("MPI_Testsome", [&] {
            Watched watched(count, requests, statuses, count);
            const int code = mpi().Testsome(count, requests, done, indices, watched.statuses());
            some(watched, code, *done, indices);
            return code;
        });
    }

    // Tests without completion: received data are written back, while the program keeps the request.
    static int Request_get_status(H request, int* flag, void* status) {
        if (!concerns_requests()) return mpi().Request_get_status(request, flag, status);
        return guarded("MPI_Request_get_status", [&] {
            std::byte handle[sizeof(H)];
            mpi().put_handle(handle, 0, request);
            Watched watched(1, handle, status, 1);
            const int code = mpi().Request_get_status(request, flag, watched.statuses());
            if (code == 0 && *flag) watched.complete(0, 0, 0);
            return code;
        });
    }
    static int Request_get_status_all(int count, const void* requests, int* flag, void* statuses) {
        if (!concerns_requests()) return mpi().Request_get_status_all(count, requests, flag, statuses);
        return guarded("MPI_Request_get_status_all", [&] {
            Watched watched(count, requests, statuses, count);
            const int code = mpi().Request_get_status_all(count, requests, flag, watched.statuses());
            for (int k = 0; code == 0 && *flag && k < count; ++k) watched.complete(k, k, 0);
            return code;
        });
    }
    static int Request_get_status_any(int count, const void* requests, int* index, int* flag, void* status) {
        if (!concerns_requests()) return mpi().Request_get_status_any(count, requests, index, flag, status);
        return guarded("MPI_Request_get_status_any", [&] {
            Watched watched(count, requests, status, 1);
            const int code = mpi().Request_get_status_any(count, requests, index, flag, watched.statuses());
            if (code == 0 && *flag && *index != mpi().undefined) watched.complete(*index, 0, 0);
            return code;
        });
    }
    static int Request_get_status_some(int count, const void* requests, int* done, int* indices,
                                       void* statuses) {
        if (!concerns_requests())
            return mpi().Request_get_status_some(count, requests, done, indices, statuses);
        return guarded("MPI_Request_get_status_some", [&] {
            Watched watched(count, requests, statuses, count);
            const int code =
                mpi().Request_get_status_some(count, requests, done, indices, watched.statuses());
            for (int k = 0; code == 0 && *done != mpi().undefined && k < *done; ++k)
                watched.complete(indices[k], k, 0);
            return code;
        });
    }

    // The program has no interest in its end; staged memory has.
    static int Request_free(void* request) {
        if (!concerns_requests()) return mpi().Request_free(request);
        return guarded("MPI_Request_free", [&] {
            const H handle = mpi().handle_at(request, 0);
            std::optional<KeptRequest> taken = take(handle);
            if (!taken || taken->done) return mpi().Request_free(request);
            give_up(handle, std::move(*taken));
            mpi().put_handle(request, 0, mpi().request_null);
            return 0;
        });
    }
    static int Start(void* request) {
        if (!concerns_requests()) return mpi().Start(request);
        return guarded("MPI_Start", [&] {
            started(mpi().handle_at(request, 0));
            return mpi().Start(request);
        });
    }
    static int Startall(int count, void* requests) {
        if (!concerns_requests()) return mpi().Startall(count, requests);
        return guarded("MPI_Startall", [&] {
            for (int k = 0; k < count; ++k) started(mpi().handle_at(requests, k));
            return mpi().Startall(count, requests);
        });
    }

  private:
    static void some(Watched& watched, int code, int done, const int* indices) {
        if (!has_ended(code) || done == mpi().undefined) return;
        for (int k = 0; k < done; ++k) watched.complete(indices[k], k, code);
    }
};

} // namespace

#define JALI_COMPLETION(name, parameters, arguments)                                                         \
    JALI_SHOWN int MPI_##name parameters {                                                                   \
        return Completions::name arguments;                                                                  \
    }
JALI_MPI_COMPLETIONS(JALI_COMPLETION)

} // namespace jali::interposer
