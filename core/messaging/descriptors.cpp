#include "messaging/descriptors.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <poll.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace jali {

namespace {

constexpr int client_timeout = 10; // seconds
// How long the server waits for a connected client to send its request and to receive the reply.
constexpr auto server_timeout = std::chrono::seconds(2);
constexpr std::size_t most_clients = 64; // at once; a further client replaces the oldest

struct Question {
    std::uint64_t secret, number;
};
// A packet each for the pieces, with their descriptors, and one at the end.
struct Answer {
    enum : std::int64_t { piece, end, unknown };
    std::int64_t what;
    std::uint64_t bytes;
};

struct Address {
    sockaddr_un name{};
    socklen_t length = 0;
};

// The name begins with a zero: it is no file and disappears with its process.
Address address_of(const FdToken& token) {
    Address address;
    address.name.sun_family = AF_UNIX;
    const int letters =
        std::snprintf(address.name.sun_path + 1, sizeof address.name.sun_path - 1, "jali-descriptors-%016llx",
                      static_cast<unsigned long long>(token.name));
    address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + letters);
    return address;
}

void set_timeout(int socket) {
    const timeval wait{client_timeout, 0};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
}

// The inode number of the process namespace; 0 where the system does not report it.
std::uint64_t own_namespace() {
    struct stat there{};
    return stat("/proc/self/ns/pid", &there) == 0 ? there.st_ino : 0;
}

enum class Sent { all, later, never };

Sent send_answer(int socket, Answer answer, int descriptor) {
    iovec data{&answer, sizeof answer};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr* head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
    }
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof answer))
        return Sent::all;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Sent::later : Sent::never;
}

// Empty if an answer was received; `descriptor` is the descriptor that it carried.
std::string receive_answer(int socket, Answer& answer, Descriptor& descriptor) {
    iovec data{&answer, sizeof answer};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t got;
    do {
        got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return "no answer within " + std::to_string(client_timeout) + " s";
    if (got < 0) return std::strerror(errno);
    if (got != static_cast<ssize_t>(sizeof answer)) return "it hung up";
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
        int number = -1;
        std::memcpy(&number, CMSG_DATA(head), sizeof number);
        descriptor = Descriptor(number);
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0 && descriptor.number() < 0)
        return "this process has no room for another file descriptor (ulimit -n)";
    return "";
}

// The descriptors that a process exports, and the thread that serves them. Never destroyed: the thread may
// outlive main.
class FdServer {
  public:
    // The server of this process: a forked child has its own.
    static FdServer& get() {
        static std::mutex mutex;
        static FdServer* server = nullptr;
        std::lock_guard lock(mutex);
        if (server == nullptr || server->process_ != getpid()) server = new FdServer;
        return *server;
    }

    FdToken add(std::vector<SharedPiece> pieces) {
        std::lock_guard lock(mutex_);
        exported_[++last_] = std::make_shared<const std::vector<SharedPiece>>(std::move(pieces));
        return {process_, random_[0], random_[1], last_, own_namespace()};
    }
    void remove(const FdToken& token) {
        std::lock_guard lock(mutex_);
        exported_.erase(token.number);
    }

  private:
    FdServer() : process_(getpid()) {
        if (getrandom(random_, sizeof random_, 0) != static_cast<ssize_t>(sizeof random_))
            throw DescriptorError(std::string("no random number: ") + std::strerror(errno));
        listening_ = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        const Address address = address_of({process_, random_[0], 0, 0, 0});
        const int number = listening_.number();
        if (number < 0 ||
            bind(number, reinterpret_cast<const sockaddr*>(&address.name), address.length) != 0 ||
            listen(number, SOMAXCONN) != 0)
            throw DescriptorError(std::string("no socket to pass file descriptors on: ") +
                                  std::strerror(errno));
        // signals are for the program's own threads
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        std::thread([this] { serve(); }).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    using Clock = std::chrono::steady_clock;

    // A connected process whose request or reply is incomplete.
    struct Client {
        Descriptor socket;
        Clock::time_point until;
        bool has_requested = false;
        std::shared_ptr<const std::vector<SharedPiece>> pieces = nullptr; // none: not exported
        std::size_t next = 0;                                             // piece to send
    };

    // A slow client does not delay the others.
    void serve() {
        std::vector<Client> clients;
        std::vector<pollfd> polled;
        for (;;) {
            polled.assign(1, {listening_.number(), POLLIN, 0});
            for (const Client& client : clients)
                polled.push_back(
                    {client.socket.number(), static_cast<short>(client.has_requested ? POLLOUT : POLLIN), 0});
            if (poll(polled.data(), polled.size(), clients.empty() ? -1 : 100) < 0) {
                usleep(10000);
                continue;
            }
            const auto now = Clock::now();
            std::size_t number = 0;
            std::erase_if(clients, [&](Client& client) {
                const bool ready = polled[++number].revents != 0;
                return ready ? !go_on_with(client) || now > client.until : now > client.until;
            });
            if (polled[0].revents != 0) let_in(clients);
        }
    }

    void let_in(std::vector<Client>& clients) {
        Descriptor socket(accept4(listening_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket.number() < 0) {
            // for instance no descriptor is left: others may be closed
            if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) usleep(10000);
            return;
        }
        ucred who{};
        socklen_t length = sizeof who;
        if (getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 || who.uid != geteuid())
            return;
        if (clients.size() >= most_clients) clients.erase(clients.begin());
        clients.push_back({std::move(socket), Clock::now() + server_timeout});
    }

    // Returns false when the exchange with the client is complete.
    bool go_on_with(Client& client) {
        if (!client.has_requested) {
            Question question{};
            if (recv(client.socket.number(), &question, sizeof question, MSG_DONTWAIT) !=
                    static_cast<ssize_t>(sizeof question) ||
                question.secret != random_[1])
                return false;
            client.has_requested = true;
            std::lock_guard lock(mutex_);
            if (const auto found = exported_.find(question.number); found != exported_.end())
                client.pieces = found->second;
        }
        const int to = client.socket.number();
        if (!client.pieces) return send_answer(to, {Answer::unknown, 0}, -1) == Sent::later;
        for (; client.next < client.pieces->size(); ++client.next) {
            const SharedPiece& piece = (*client.pieces)[client.next];
            const Sent sent = send_answer(to, {Answer::piece, piece.bytes}, piece.descriptor.number());
            if (sent != Sent::all) return sent == Sent::later;
        }
        return send_answer(to, {Answer::end, 0}, -1) == Sent::later;
    }

    const pid_t process_;
    std::uint64_t random_[2] = {}; // the socket's name, which every process can read, and the secret
    std::uint64_t last_ = 0;
    Descriptor listening_;
    std::mutex mutex_;
    std::map<std::uint64_t, std::shared_ptr<const std::vector<SharedPiece>>> exported_;
};

} // namespace

FdExporter::FdExporter(std::vector<SharedPiece> pieces) : token_(FdServer::get().add(std::move(pieces))) {
}

FdExporter::~FdExporter() {
    if (token_.process == getpid()) FdServer::get().remove(token_); // else the child of a fork
}

std::vector<SharedPiece> fetch_descriptors(const FdToken& token) {
    const std::string from = "file descriptors of process " + std::to_string(token.process) + ": ";
    const Descriptor socket_of(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const int number = socket_of.number();
    if (number < 0) throw DescriptorError(from + "no socket: " + std::strerror(errno));
    set_timeout(number);
    const Address address = address_of(token);
    int connected;
    do {
        connected = connect(number, reinterpret_cast<const sockaddr*>(&address.name), address.length);
    } while (connected != 0 && errno == EINTR);
    if (connected != 0)
        throw DescriptorError(
            from + "its socket cannot be reached (" + std::strerror(errno) +
            "); it has ended, or the two run in containers with network namespaces of their own");
    // The secret is for the process of the token alone, and only its memory is mapped.
    ucred who{};
    socklen_t length = sizeof who;
    if (getsockopt(number, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0)
        throw DescriptorError(from + "asking who answers: " + std::strerror(errno));
    if (who.uid != geteuid())
        throw DescriptorError(from + "user " + std::to_string(who.uid) + " answers in its place, not user " +
                              std::to_string(geteuid()));
    const std::uint64_t here = own_namespace();
    if (here != 0 && here == token.namespace_of_processes && who.pid != token.process)
        throw DescriptorError(from + "process " + std::to_string(who.pid) + " answers in its place");
    const Question question{token.secret, token.number};
    if (send(number, &question, sizeof question, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof question))
        throw DescriptorError(from + "asking for them: " + std::strerror(errno));
    std::vector<SharedPiece> pieces;
    for (;;) {
        Answer answer{};
        Descriptor descriptor;
        const std::string trouble = receive_answer(number, answer, descriptor);
        if (!trouble.empty()) throw DescriptorError(from + trouble);
        if (answer.what == Answer::end) return pieces;
        if (answer.what != Answer::piece || descriptor.number() < 0)
            throw DescriptorError(from + "the memory is not exported any more");
        pieces.push_back({std::move(descriptor), static_cast<std::size_t>(answer.bytes)});
    }
}

} // namespace jali
