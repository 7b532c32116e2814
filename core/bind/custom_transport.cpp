// Transports written in Python: a Transport whose messages an object of Python moves (jali.comm.Transport).
#include "device_transports/custom_transport.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;
using namespace jali;

namespace {

// A Python view of bytes, valid during the lifetime of this object. With the interpreter's lock.
class View {
  public:
    explicit View(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    }
    ~View() { PyBuffer_Release(&view_); }
    View(const View&) = delete;
    const void* data() const { return view_.buf; }
    std::size_t size() const { return static_cast<std::size_t>(view_.len); }

  private:
    Py_buffer view_;
};

struct PythonRequest final : Request {
    nb::object request, sent; // the transport's request; the view of sent bytes
    void* into = nullptr;     // of a receive
    std::size_t bytes = 0;

    // A later read of the sent bytes raises an error in Python, instead of reading other memory.
    ~PythonRequest() override {
        if (!Py_IsInitialized()) {
            request.release();
            sent.release();
            return;
        }
        nb::gil_scoped_acquire acquired;
        if (sent.is_valid() && PyObject_CallMethod(sent.ptr(), "release", nullptr) == nullptr) PyErr_Clear();
        request.reset();
        sent.reset();
    }
};

class PythonTransport final : public CustomTransport {
  public:
    explicit PythonTransport(nb::object transport)
        : transport_(std::move(transport)), name_(nb::cast<std::string>(transport_.attr("name"))),
          rank_(nb::cast<int>(transport_.attr("rank"))), size_(nb::cast<int>(transport_.attr("size"))),
          of_processes_(nb::cast<bool>(transport_.attr("of_processes"))) {}
    ~PythonTransport() override {
        if (!Py_IsInitialized()) {
            transport_.release();
            return;
        }
        nb::gil_scoped_acquire acquired;
        transport_.reset();
    }

    std::string name() const override { return name_; }
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    bool of_processes() const override { return of_processes_; }

    std::unique_ptr<Request> send(const void* data, std::size_t bytes, int to, std::uint64_t tag) override {
        nb::gil_scoped_acquire acquired;
        auto request = std::make_unique<PythonRequest>();
        static char nothing = 0;
        char* const begin = bytes > 0 ? const_cast<char*>(static_cast<const char*>(data)) : &nothing;
        request->sent = nb::steal(PyMemoryView_FromMemory(begin, static_cast<Py_ssize_t>(bytes), PyBUF_READ));
        if (!request->sent.is_valid()) throw nb::python_error();
        request->bytes = bytes;
        request->request = transport_.attr("send")(request->sent, to, tag);
        return request;
    }

    std::unique_ptr<Request> receive(void* data, std::size_t most, int from, std::uint64_t tag) override {
        nb::gil_scoped_acquire acquired;
        auto request = std::make_unique<PythonRequest>();
        request->into = data;
        request->bytes = most;
        request->request = transport_.attr("receive")(from, tag);
        return request;
    }

    std::optional<std::size_t> test(Request& tested) override {
        auto& request = static_cast<PythonRequest&>(tested);
        nb::gil_scoped_acquire acquired;
        if (request.sent.is_valid()) {
            if (!nb::cast<bool>(call("sent", request))) return {};
            return request.bytes;
        }
        const nb::object came = call("received", request);
        if (came.is_none()) return {};
        const View view(came);
        if (const std::size_t bytes = std::min(view.size(), request.bytes); bytes > 0)
            std::memcpy(request.into, view.data(), bytes);
        return view.size();
    }

  private:
    nb::object call(const char* method, const PythonRequest& request) const {
        try {
            return transport_.attr(method)(request.request);
        } catch (const nb::python_error& error) {
            const nb::handle failure = error.value();
            if (error.matches(nb::module_::import_("jali.errors").attr("RankError")) &&
                nb::hasattr(failure, "rank") && nb::hasattr(failure, "cause"))
                throw RankFailure(nb::cast<int>(failure.attr("rank")),
                                  nb::cast<std::string>(failure.attr("cause")));
            throw;
        }
    }

    nb::object transport_;
    std::string name_;
    int rank_, size_;
    bool of_processes_;
};

} // namespace

void bind_custom_transport(nb::module_& m) {
    m.def(
        "make_custom_communicator",
        [](nb::object transport) {
            return make_custom_communicator(std::make_shared<PythonTransport>(std::move(transport)));
        },
        "transport"_a, "Of a jali.comm.Transport, whose messages it takes for itself.");
}
