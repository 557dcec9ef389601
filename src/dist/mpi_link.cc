#include "dist/mpi_link.h"

// The C interface alone: the old C++ one needs a library of its own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"

namespace haversack {
namespace {

// Beside the tags of messages.
constexpr int kNoticeTag = 30000;

void Check(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw UserError(ExitCode::kPeer,
                  "MPI: {} failed: {}; a peer or the network to it is gone: start the run again "
                  "with --resume",
                  what, std::string(text, length));
}

class MpiLink : public Link {
 public:
  MpiLink() {
    int provided = 0;
    Check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "start");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm local;
    Check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local),
          "counting the ranks of a machine");
    MPI_Comm_size(local, &local_size_);
    MPI_Comm_free(&local);
  }

  ~MpiLink() override {
    while (Noticed()) {
    }
    MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_size() const override { return local_size_; }

  Ticket Send(int to, int tag, const void* data, size_t bytes) override {
    const Ticket ticket = NewTicket();
    Check(MPI_Isend(data, Count(bytes), MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests_[ticket]),
          "send");
    return ticket;
  }

  Ticket Receive(int from, int tag, void* data, size_t bytes) override {
    const Ticket ticket = NewTicket();
    Check(MPI_Irecv(data, Count(bytes), MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests_[ticket]),
          "receive");
    return ticket;
  }

  bool Done(Ticket ticket) override {
    int done = 0;
    Check(MPI_Test(&requests_[ticket], &done, MPI_STATUS_IGNORE), "message");
    if (done) free_.push_back(ticket);
    return done != 0;
  }

  void Notice() override {
    for (int to = 0; to < size_; ++to) {
      if (to == rank_) continue;
      MPI_Request request;
      Check(MPI_Isend(&nothing_, 0, MPI_BYTE, to, kNoticeTag, MPI_COMM_WORLD, &request), "notice");
      MPI_Request_free(&request);
    }
  }

  bool Noticed() override {
    int there = 0;
    Check(MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE),
          "notice");
    if (!there) return false;
    Check(MPI_Recv(&nothing_, 0, MPI_BYTE, MPI_ANY_SOURCE, kNoticeTag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE),
          "notice");
    return true;
  }

  void Abort(ExitCode code) override {
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
    std::_Exit(static_cast<int>(code));
  }

 private:
  static int Count(size_t bytes) {
    HAVERSACK_CHECK(bytes < (size_t{1} << 30), "a message of {} bytes", bytes);
    return static_cast<int>(bytes);
  }

  Ticket NewTicket() {
    if (free_.empty()) {
      requests_.emplace_back(MPI_REQUEST_NULL);
      return static_cast<Ticket>(requests_.size()) - 1;
    }
    const Ticket ticket = free_.back();
    free_.pop_back();
    return ticket;
  }

  int rank_ = 0, size_ = 1, local_size_ = 1;
  char nothing_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<Ticket> free_;
};

}  // namespace

std::unique_ptr<Link> OpenMpiLink() { return std::make_unique<MpiLink>(); }

}  // namespace haversack
