// The process's one thread pool: the OpenMP runtime of the torch wheel, which MKL uses too.
//
//   ParallelFor(rows, /*grain=*/16, [&](int64_t begin, int64_t end) { ... });
//   ParallelTasks(count, [&](int64_t task, int thread) { ... });
//
// A result must never depend on the number of threads: a reduction over rows goes through partial
// sums over blocks of fixed size, added in block order. An exception inside is rethrown by the
// caller's call.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace haversack {

namespace internal {

// A reference to a callable, without the allocation of std::function.
template <typename Signature>
class FunctionRef;

template <typename Result, typename... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
      FunctionRef(F&& f)  // NOLINT: implicit by design
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  Result (*call_)(void*, Args...);
};

}  // namespace internal

// Threads of later parallel regions, MKL's included. `count` >= 1.
void SetNumThreads(int count);
int NumThreads();
// Cores this process may run on (its affinity mask, at least 1).
int AvailableCores();

// body(begin, end) over [0, count) cut into contiguous pieces of at least `grain`.
void ParallelFor(int64_t count, int64_t grain,
                 internal::FunctionRef<void(int64_t begin, int64_t end)> body);

// body(task, thread) for each task in [0, count), handed out in order to whichever thread is free;
// 0 <= thread < NumThreads().
void ParallelTasks(int64_t count, internal::FunctionRef<void(int64_t task, int thread)> body);

}  // namespace haversack
