#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "base/error.h"

// The three entry points of libgomp that are needed, declared here so that no file is compiled with
// -fopenmp: that flag would link the compiler's own runtime beside the wheel's.
extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);
void omp_set_num_threads(int count);
int omp_get_max_threads(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
int omp_in_parallel(void);
}

namespace haversack {
namespace {

// Runs body(thread, threads) on every thread of one region and rethrows its first exception.
void Region(int threads, internal::FunctionRef<void(int, int)> body) {
  struct Shared {
    internal::FunctionRef<void(int, int)> body;
    std::mutex mutex;
    std::exception_ptr failure;
  } shared{body, {}, nullptr};
  GOMP_parallel(
      [](void* data) {
        auto& s = *static_cast<Shared*>(data);
        try {
          s.body(omp_get_thread_num(), omp_get_num_threads());
        } catch (...) {
          const std::lock_guard<std::mutex> lock(s.mutex);
          if (!s.failure) s.failure = std::current_exception();
        }
      },
      &shared, static_cast<unsigned>(threads), 0);
  if (shared.failure) std::rethrow_exception(shared.failure);
}

}  // namespace

void SetNumThreads(int count) {
  HAVERSACK_CHECK(count >= 1, "count {}", count);
  omp_set_num_threads(count);
}

int NumThreads() { return omp_get_max_threads(); }

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

void ParallelFor(int64_t count, int64_t grain, internal::FunctionRef<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  const int64_t pieces =
      std::min<int64_t>(NumThreads(), std::max<int64_t>(1, count / std::max<int64_t>(1, grain)));
  if (pieces <= 1 || omp_in_parallel()) return body(0, count);
  Region(static_cast<int>(pieces), [&](int thread, int threads) {
    const int64_t begin = count * thread / threads;
    const int64_t end = count * (thread + 1) / threads;
    if (begin < end) body(begin, end);
  });
}

void ParallelTasks(int64_t count, internal::FunctionRef<void(int64_t, int)> body) {
  if (count <= 0) return;
  const int64_t threads = std::min<int64_t>(NumThreads(), count);
  if (threads <= 1 || omp_in_parallel()) {
    for (int64_t task = 0; task < count; ++task) body(task, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  Region(static_cast<int>(threads), [&](int thread, int) {
    for (int64_t task = next++; task < count; task = next++) body(task, thread);
  });
}

}  // namespace haversack
