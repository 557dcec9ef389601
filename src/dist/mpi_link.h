// Messages over MPI. Only mpi_link.cc knows MPI's header.
#pragma once

#include <memory>

#include "dist/link.h"

namespace haversack {

// Starts MPI, which every rank does once; a program that no launcher started is one rank of one.
// The link's end is the end of MPI: all ranks must come to it.
std::unique_ptr<Link> OpenMpiLink();

}  // namespace haversack
