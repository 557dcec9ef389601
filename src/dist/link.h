// Point-to-point messages between the ranks of a run: what a Communicator is built on. An
// implementation is one file: MPI (mpi_link.h), threads of one process in tests.
//
// Messages between two ranks under one tag arrive in the order in which they were sent. All calls
// come from one thread, and messages move on only inside such calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace haversack {

class Link {
 public:
  using Ticket = int64_t;  // of a message on its way

  virtual ~Link() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Ranks on this machine, and which of them this is: they share its cores and its memory.
  virtual int local_size() const = 0;

  // Start a message and return at once; the memory stays as it is until Done has said so. The
  // receiver gives exactly the number of bytes that is sent.
  virtual Ticket Send(int to, int tag, const void* data, size_t bytes) = 0;
  virtual Ticket Receive(int from, int tag, void* data, size_t bytes) = 0;
  // Whether the message is through; a ticket is asked again until it is, and then no more. Throws
  // UserError (exit 6) where the other side is known to be gone.
  virtual bool Done(Ticket ticket) = 0;

  // Tells all other ranks, without waiting, to come to the next agreement early.
  virtual void Notice() = 0;
  // Whether a rank has done so since it was last asked.
  virtual bool Noticed() = 0;

  // Ends every rank of the run with this status, whatever it is doing.
  [[noreturn]] virtual void Abort(ExitCode code) = 0;
};

}  // namespace haversack
