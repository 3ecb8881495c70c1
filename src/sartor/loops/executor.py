"""The native executor: the small loop that walks a plan's task list on every thread, as LLVM IR text.

It is compiled once for each target and linked into every program image, so that running needs no Python between tasks.
Functions it exports (all integers are 64 bits wide):

``sartor_run(run) -> status``
    Runs all tasks: on the calling thread alone, or as thread 0 beside workers of the pool.  Status 0: done; 1: nothing was
    done, the pool has fewer workers than the run wants.  When another run holds the pool, the calling thread runs alone.
``sartor_call(call, addresses) -> status``
    Patches the caller's buffers into the argument blocks, then `sartor_run`.
``sartor_method(self, objects, count) -> object``
    The same as the body of a Python built-in method (METH_FASTCALL) whose self is the numpy array that holds the call: reads
    the addresses from numpy arrays and releases the interpreter lock around the run.  Returns the status as an int; 2: the
    number of objects is wrong, or one is not a plain array; nothing was run.
``sartor_worker(slot)``
    The life of a worker thread.  Workers started from one image can run the tasks of any other: a job is a function pointer
    and its argument.
``sartor_spin(n)``, ``sartor_clock() -> ticks``, ``sartor_abi() -> version``
    n pauses, to measure how long one takes; the counter that profiles are written in; the version of the layouts below.

The layouts, in slots of 8 bytes, are `%task`, `%run`, `%pool`, `%slot` and `%call` below; `sartor.runtime.threads` and
`sartor.runtime.executor` fill them in.  Words that different threads write stand on lines of 128 bytes of their own, because
processors fetch lines of 64 bytes in pairs.

All threads run in one floating-point mode: round to nearest, nothing trapped, denormals flushed to zero.  The mode of the
thread that came is restored when it leaves.
"""

from __future__ import annotations

from string import Template

from sartor.errors import UnsupportedError
from sartor.loops.target import Target

ABI_VERSION = 1
"""Version of the layouts and functions; the runtime refuses an image with another one."""


def executor_ir(target: Target) -> str:
    """LLVM IR text of the executor for `target`; it has no undefined symbols.

    Raises
    ------
    UnsupportedError
        The executor is not written for the target's architecture.
    """
    machine = target.triple.split("-")[0]
    if machine not in _MACHINES:
        raise UnsupportedError(f"the executor is written for {' and '.join(_MACHINES)}, not for {machine} ({target.triple})")
    return Template(_COMMON).substitute(triple=target.triple, abi=ABI_VERSION, **_FUTEX[machine]) + _MACHINES[machine]


# System call numbers of Linux.
_FUTEX = {"x86_64": {"futex": 202}, "aarch64": {"futex": 98}}

_X86_64 = """
declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare i64 @llvm.readcyclecounter()

define internal void @pause() alwaysinline nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}

define internal i64 @clock() alwaysinline nounwind {
  %ticks = call i64 @llvm.readcyclecounter()
  ret i64 %ticks
}

define internal i64 @enter_mode() alwaysinline nounwind {
  %word = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %old = load i32, ptr %word
  store i32 40896, ptr %word                    ; 0x9fc0: all exceptions masked, flush to zero, denormals are zero
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  %mode = zext i32 %old to i64
  ret i64 %mode
}

define internal void @leave_mode(i64 %mode) alwaysinline nounwind {
  %word = alloca i32
  %old = trunc i64 %mode to i32
  store i32 %old, ptr %word
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret void
}
"""

_AARCH64 = """
declare void @llvm.aarch64.isb(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
declare i64 @llvm.read_volatile_register.i64(metadata)

define internal void @pause() alwaysinline nounwind {
  call void @llvm.aarch64.isb(i32 15)           ; waits some tens of cycles; the YIELD hint does nothing on most cores
  ret void
}

define internal i64 @clock() alwaysinline nounwind {
  %ticks = call i64 @llvm.read_volatile_register.i64(metadata !0)
  ret i64 %ticks
}

define internal i64 @enter_mode() alwaysinline nounwind {
  %mode = call i64 @llvm.aarch64.get.fpcr()
  call void @llvm.aarch64.set.fpcr(i64 16777216) ; bit 24: flush to zero
  ret i64 %mode
}

define internal void @leave_mode(i64 %mode) alwaysinline nounwind {
  call void @llvm.aarch64.set.fpcr(i64 %mode)
  ret void
}

!0 = !{!"cntvct_el0"}
"""

_MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64}

_COMMON = """
target triple = "$triple"

; A task: function, arguments, extent, grain, chunk, threads, counter, flags.
;   The extent is divided among the threads at multiples of grain: chunk 0, into one slice each; chunk > 0 (a multiple of
;   grain), into chunks that threads claim by adding to counter.  threads > 0 limits who takes part (1: thread 0 alone).
;   Flag bit 0: the next task does not depend on this one, so that no barrier stands between them.
%task = type { ptr, ptr, i64, i64, i64, i64, i64, i64 }
; A run: 0 threads wanted, 1 tasks, 2 their number, 3 scratch, 4 scratch bytes a thread, 5 profile or null, 6 pool,
;   7 threads taking part; 9 arrived at the barrier; 11 barriers passed.
%run = type { i64, ptr, i64, ptr, i64, ptr, ptr, i64, [8 x i64], i64, [15 x i64], i64, [15 x i64] }
; The pool: 0 workers, 1 syscall, 2 sched_yield, 3 pauses of a waiting thread before it yields, 4 times an idle worker
;   yields before it parks; 6 held by a run; 8 workers still busy with the job.  The slots of its workers follow.
%pool = type { i64, ptr, ptr, i64, i64, [11 x i64], i64, [15 x i64], i64, [15 x i64] }
; What a worker listens to: 0 jobs given, 1 function, 2 argument, 3 index of the thread in the job, 4 parked, 5 pool.
%slot = type { i64, ptr, ptr, i64, i64, ptr, [10 x i64] }
; A call: 0 run, 1 number of buffers, 2 the type of arrays; 3 PyLong_FromLong, 4 PyEval_SaveThread or null to keep the
;   interpreter lock, 5 PyEval_RestoreThread; then, a buffer each, a pointer to its patches: their number, and for each the
;   address of an argument and the offset to add.
%call = type { ptr, i64, ptr, ptr, ptr, ptr, [0 x ptr] }
; What CPython's objects and NumPy's arrays start with: references, type, data.
%array = type { i64, ptr, ptr }

define i64 @sartor_abi() nounwind {
  ret i64 $abi
}

define i64 @sartor_clock() nounwind {
  %ticks = call i64 @clock()
  ret i64 %ticks
}

define void @sartor_spin(i64 %n) nounwind {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  call void @pause()
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %n
  br i1 %more, label %next, label %done
done:
  ret void
}

; Returns once the word is no longer the value, or after a number of pauses; whether the word has changed.
define internal i1 @changes(ptr %word, i64 %value, ptr %pool) alwaysinline nounwind {
entry:
  %limit.p = getelementptr %pool, ptr %pool, i64 0, i32 3
  %limit = load i64, ptr %limit.p
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i1, %spin ]
  %now = load atomic i64, ptr %word acquire, align 8
  %same = icmp eq i64 %now, %value
  br i1 %same, label %wait, label %changed
wait:
  %patient = icmp ult i64 %i, %limit
  br i1 %patient, label %spin, label %unchanged
spin:
  call void @pause()
  %i1 = add i64 %i, 1
  br label %look
changed:
  ret i1 true
unchanged:
  ret i1 false
}

; Offers the processor to other threads, so that more threads than processors make progress.
define internal void @yield(ptr %pool) alwaysinline nounwind {
  %yield.p = getelementptr %pool, ptr %pool, i64 0, i32 2
  %sched_yield = load ptr, ptr %yield.p
  %ignored = call i32 %sched_yield()
  ret void
}

; Returns once the word is no longer the value.
define internal void @wait_while(ptr %word, i64 %value, ptr %pool) nounwind {
entry:
  br label %look
look:
  %changed = call i1 @changes(ptr %word, i64 %value, ptr %pool)
  br i1 %changed, label %done, label %yield
yield:
  call void @yield(ptr %pool)
  br label %look
done:
  ret void
}

; Sets the counters of dynamically divided tasks from first up to end back to 0.
define internal void @reset_counters(ptr %tasks, i64 %first, i64 %end) nounwind {
entry:
  br label %check
check:
  %i = phi i64 [ %first, %entry ], [ %i1, %next ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %look, label %done
look:
  %chunk.p = getelementptr %task, ptr %tasks, i64 %i, i32 4
  %chunk = load i64, ptr %chunk.p
  %static = icmp eq i64 %chunk, 0
  br i1 %static, label %next, label %reset
reset:
  %counter.p = getelementptr %task, ptr %tasks, i64 %i, i32 6
  store atomic i64 0, ptr %counter.p monotonic, align 8
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %check
done:
  ret void
}

; All threads of the run meet; the last to come resets the counters of the tasks done since the barrier before.
define internal void @barrier(ptr %run, i64 %active, ptr %tasks, i64 %first, i64 %end) nounwind {
entry:
  %arrived.p = getelementptr %run, ptr %run, i64 0, i32 9
  %passed.p = getelementptr %run, ptr %run, i64 0, i32 11
  %passed = load atomic i64, ptr %passed.p monotonic, align 8
  %before = atomicrmw add ptr %arrived.p, i64 1 acq_rel
  %arrived = add i64 %before, 1
  %last = icmp eq i64 %arrived, %active
  br i1 %last, label %open, label %wait
open:
  call void @reset_counters(ptr %tasks, i64 %first, i64 %end)
  store atomic i64 0, ptr %arrived.p monotonic, align 8
  %passed1 = add i64 %passed, 1
  store atomic i64 %passed1, ptr %passed.p release, align 8
  ret void
wait:
  %pool.p = getelementptr %run, ptr %run, i64 0, i32 6
  %pool = load ptr, ptr %pool.p
  call void @wait_while(ptr %passed.p, i64 %passed, ptr %pool)
  ret void
}

; Writes the clock into profile[i]; a null profile writes nothing.
define internal void @note(ptr %profile, i64 %i) alwaysinline nounwind {
entry:
  %none = icmp eq ptr %profile, null
  br i1 %none, label %done, label %write
write:
  %place = getelementptr i64, ptr %profile, i64 %i
  %ticks = call i64 @clock()
  store i64 %ticks, ptr %place
  br label %done
done:
  ret void
}

; The part of one thread in a run of several.  Returns the first task whose counter nobody reset.
define internal i64 @walk(ptr %run, i64 %index) nounwind {
entry:
  %mode = call i64 @enter_mode()
  %tasks.p = getelementptr %run, ptr %run, i64 0, i32 1
  %tasks = load ptr, ptr %tasks.p
  %count.p = getelementptr %run, ptr %run, i64 0, i32 2
  %count = load i64, ptr %count.p
  %scratch.p = getelementptr %run, ptr %run, i64 0, i32 3
  %scratch.base = load ptr, ptr %scratch.p
  %bytes.p = getelementptr %run, ptr %run, i64 0, i32 4
  %bytes = load i64, ptr %bytes.p
  %scratch.offset = mul i64 %bytes, %index
  %scratch = getelementptr i8, ptr %scratch.base, i64 %scratch.offset
  %profile.p = getelementptr %run, ptr %run, i64 0, i32 5
  %profile.all = load ptr, ptr %profile.p
  %leader = icmp eq i64 %index, 0
  %profile = select i1 %leader, ptr %profile.all, ptr null
  %active.p = getelementptr %run, ptr %run, i64 0, i32 7
  %active = load i64, ptr %active.p
  call void @note(ptr %profile, i64 0)
  br label %check
check:
  ; first: the first task since the last barrier; shared: whether a task since then ran on more than thread 0
  %i = phi i64 [ 0, %entry ], [ %i1, %after ]
  %first = phi i64 [ 0, %entry ], [ %first.next, %after ]
  %shared = phi i1 [ false, %entry ], [ %shared.next, %after ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %begin, label %done
begin:
  %this = getelementptr %task, ptr %tasks, i64 %i
  %fn = load ptr, ptr %this
  %args.p = getelementptr %task, ptr %this, i64 0, i32 1
  %args = load ptr, ptr %args.p
  %extent.p = getelementptr %task, ptr %this, i64 0, i32 2
  %extent = load i64, ptr %extent.p
  %grain.p = getelementptr %task, ptr %this, i64 0, i32 3
  %grain = load i64, ptr %grain.p
  %chunk.p = getelementptr %task, ptr %this, i64 0, i32 4
  %chunk = load i64, ptr %chunk.p
  %threads.p = getelementptr %task, ptr %this, i64 0, i32 5
  %threads.task = load i64, ptr %threads.p
  %unlimited = icmp eq i64 %threads.task, 0
  %threads.wanted = select i1 %unlimited, i64 %active, i64 %threads.task
  %too.many = icmp ugt i64 %threads.wanted, %active
  %threads = select i1 %too.many, i64 %active, i64 %threads.wanted
  %alone = icmp eq i64 %threads, 1
  %together = xor i1 %alone, true
  %shared.now = or i1 %shared, %together
  %takes.part = icmp ult i64 %index, %threads
  br i1 %takes.part, label %divide, label %finish
divide:
  br i1 %alone, label %slice, label %how
how:
  %static = icmp eq i64 %chunk, 0
  br i1 %static, label %portion, label %claim
portion:
  %extent.up = add i64 %extent, %grain
  %extent.last = sub i64 %extent.up, 1
  %grains = udiv i64 %extent.last, %grain
  %begin.scaled = mul i64 %grains, %index
  %begin.grain = udiv i64 %begin.scaled, %threads
  %begin.portion = mul i64 %begin.grain, %grain
  %index1 = add i64 %index, 1
  %end.scaled = mul i64 %grains, %index1
  %end.grain = udiv i64 %end.scaled, %threads
  %end.up = mul i64 %end.grain, %grain
  %end.over = icmp ugt i64 %end.up, %extent
  %end.portion = select i1 %end.over, i64 %extent, i64 %end.up
  br label %slice
slice:
  %slice.begin = phi i64 [ 0, %divide ], [ %begin.portion, %portion ]
  %slice.end = phi i64 [ %extent, %divide ], [ %end.portion, %portion ]
  %something = icmp ult i64 %slice.begin, %slice.end
  br i1 %something, label %compute, label %finish
compute:
  call void %fn(ptr %args, ptr %scratch, i64 %slice.begin, i64 %slice.end)
  br label %finish
claim:
  %counter.p = getelementptr %task, ptr %this, i64 0, i32 6
  %claimed = atomicrmw add ptr %counter.p, i64 %chunk monotonic
  %got = icmp ult i64 %claimed, %extent
  br i1 %got, label %claimed.compute, label %finish
claimed.compute:
  %claimed.up = add i64 %claimed, %chunk
  %claimed.over = icmp ugt i64 %claimed.up, %extent
  %claimed.end = select i1 %claimed.over, i64 %extent, i64 %claimed.up
  call void %fn(ptr %args, ptr %scratch, i64 %claimed, i64 %claimed.end)
  br label %claim
finish:
  %i1 = add i64 %i, 1
  %final = icmp eq i64 %i1, %count
  br i1 %final, label %after, label %inner
inner:
  %flags.p = getelementptr %task, ptr %this, i64 0, i32 7
  %flags = load i64, ptr %flags.p
  %independent.bit = and i64 %flags, 1
  %independent = icmp ne i64 %independent.bit, 0
  br i1 %independent, label %after, label %dependent
dependent:
  ; Thread 0 alone has worked since the last barrier and goes on alone: nobody waits for it.
  %following.p = getelementptr %task, ptr %tasks, i64 %i1, i32 5
  %following = load i64, ptr %following.p
  %following.alone = icmp eq i64 %following, 1
  %unshared = xor i1 %shared.now, true
  %in.sequence = and i1 %unshared, %following.alone
  br i1 %in.sequence, label %after, label %meet
meet:
  call void @barrier(ptr %run, i64 %active, ptr %tasks, i64 %first, i64 %i1)
  br label %after
after:
  %first.next = phi i64 [ %first, %finish ], [ %first, %inner ], [ %first, %dependent ], [ %i1, %meet ]
  %shared.next = phi i1 [ %shared.now, %finish ], [ %shared.now, %inner ], [ %shared.now, %dependent ], [ false, %meet ]
  call void @note(ptr %profile, i64 %i1)
  br label %check
done:
  call void @leave_mode(i64 %mode)
  ret i64 %first
}

; All tasks, whole, one after the other, on the calling thread.
define internal void @walk_alone(ptr %run) nounwind {
entry:
  %mode = call i64 @enter_mode()
  %tasks.p = getelementptr %run, ptr %run, i64 0, i32 1
  %tasks = load ptr, ptr %tasks.p
  %count.p = getelementptr %run, ptr %run, i64 0, i32 2
  %count = load i64, ptr %count.p
  %scratch.p = getelementptr %run, ptr %run, i64 0, i32 3
  %scratch = load ptr, ptr %scratch.p
  %profile.p = getelementptr %run, ptr %run, i64 0, i32 5
  %profile = load ptr, ptr %profile.p
  call void @note(ptr %profile, i64 0)
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i1, %after ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %begin, label %done
begin:
  %this = getelementptr %task, ptr %tasks, i64 %i
  %extent.p = getelementptr %task, ptr %this, i64 0, i32 2
  %extent = load i64, ptr %extent.p
  %empty = icmp eq i64 %extent, 0
  br i1 %empty, label %after, label %compute
compute:
  %fn = load ptr, ptr %this
  %args.p = getelementptr %task, ptr %this, i64 0, i32 1
  %args = load ptr, ptr %args.p
  call void %fn(ptr %args, ptr %scratch, i64 0, i64 %extent)
  br label %after
after:
  %i1 = add i64 %i, 1
  call void @note(ptr %profile, i64 %i1)
  br label %check
done:
  call void @leave_mode(i64 %mode)
  ret void
}

; Gives workers 0 to threads - 2 the job fn(argument, index), as threads 1 and on.
define internal void @dispatch(ptr %pool, ptr %fn, ptr %argument, i64 %threads) nounwind {
entry:
  %pending.p = getelementptr %pool, ptr %pool, i64 0, i32 8
  %workers = sub i64 %threads, 1
  store atomic i64 %workers, ptr %pending.p monotonic, align 8
  %slots = getelementptr %pool, ptr %pool, i64 1
  br label %give
give:
  %i = phi i64 [ 0, %entry ], [ %i1, %give ]
  %i1 = add i64 %i, 1
  %slot = getelementptr %slot, ptr %slots, i64 %i
  %fn.p = getelementptr %slot, ptr %slot, i64 0, i32 1
  store ptr %fn, ptr %fn.p
  %argument.p = getelementptr %slot, ptr %slot, i64 0, i32 2
  store ptr %argument, ptr %argument.p
  %index.p = getelementptr %slot, ptr %slot, i64 0, i32 3
  store i64 %i1, ptr %index.p
  %given = atomicrmw add ptr %slot, i64 1 seq_cst
  %more = icmp ult i64 %i1, %workers
  br i1 %more, label %give, label %wake
wake:
  %j = phi i64 [ 0, %give ], [ %j1, %wake.next ]
  %sleeper = getelementptr %slot, ptr %slots, i64 %j
  %parked.p = getelementptr %slot, ptr %sleeper, i64 0, i32 4
  %parked = load atomic i64, ptr %parked.p seq_cst, align 8
  %awake = icmp eq i64 %parked, 0
  br i1 %awake, label %wake.next, label %wake.call
wake.call:
  %syscall.p = getelementptr %pool, ptr %pool, i64 0, i32 1
  %syscall = load ptr, ptr %syscall.p
  %woken = call i64 (i64, ...) %syscall(i64 $futex, ptr %sleeper, i64 129, i64 1) ; FUTEX_WAKE_PRIVATE
  br label %wake.next
wake.next:
  %j1 = add i64 %j, 1
  %wake.more = icmp ult i64 %j1, %workers
  br i1 %wake.more, label %wake, label %done
done:
  ret void
}

define i64 @sartor_run(ptr %run) nounwind {
entry:
  %threads = load i64, ptr %run
  %several = icmp ugt i64 %threads, 1
  br i1 %several, label %look, label %alone
look:
  %pool.p = getelementptr %run, ptr %run, i64 0, i32 6
  %pool = load ptr, ptr %pool.p
  %workers = load atomic i64, ptr %pool acquire, align 8
  %enough.workers = add i64 %workers, 1
  %short = icmp ult i64 %enough.workers, %threads
  br i1 %short, label %refuse, label %take
refuse:
  ret i64 1
take:
  %busy.p = getelementptr %pool, ptr %pool, i64 0, i32 6
  %taken = cmpxchg ptr %busy.p, i64 0, i64 1 acquire monotonic
  %free = extractvalue { i64, i1 } %taken, 1
  br i1 %free, label %together, label %alone
together:
  %active.p = getelementptr %run, ptr %run, i64 0, i32 7
  store i64 %threads, ptr %active.p
  call void @dispatch(ptr %pool, ptr @walk, ptr %run, i64 %threads)
  %first = call i64 @walk(ptr %run, i64 0)
  %pending.p = getelementptr %pool, ptr %pool, i64 0, i32 8
  br label %await
await:
  %pending = load atomic i64, ptr %pending.p acquire, align 8
  %all.done = icmp eq i64 %pending, 0
  br i1 %all.done, label %finish, label %wait
wait:
  call void @wait_while(ptr %pending.p, i64 %pending, ptr %pool)
  br label %await
finish:
  %tasks.p = getelementptr %run, ptr %run, i64 0, i32 1
  %tasks = load ptr, ptr %tasks.p
  %count.p = getelementptr %run, ptr %run, i64 0, i32 2
  %count = load i64, ptr %count.p
  call void @reset_counters(ptr %tasks, i64 %first, i64 %count)
  store atomic i64 0, ptr %busy.p release, align 8
  ret i64 0
alone:
  call void @walk_alone(ptr %run)
  ret i64 0
}

define void @sartor_worker(ptr %slot) nounwind {
entry:
  %fn.p = getelementptr %slot, ptr %slot, i64 0, i32 1
  %argument.p = getelementptr %slot, ptr %slot, i64 0, i32 2
  %index.p = getelementptr %slot, ptr %slot, i64 0, i32 3
  %parked.p = getelementptr %slot, ptr %slot, i64 0, i32 4
  %pool.p = getelementptr %slot, ptr %slot, i64 0, i32 5
  %pool = load ptr, ptr %pool.p
  %syscall.p = getelementptr %pool, ptr %pool, i64 0, i32 1
  %syscall = load ptr, ptr %syscall.p
  %yields.p = getelementptr %pool, ptr %pool, i64 0, i32 4
  %pending.p = getelementptr %pool, ptr %pool, i64 0, i32 8
  br label %idle
idle:
  %seen = phi i64 [ 0, %entry ], [ %seen1, %work ]
  %yields = load i64, ptr %yields.p
  br label %look
look:
  %i = phi i64 [ 0, %idle ], [ %i1, %yield ]
  %job = call i1 @changes(ptr %slot, i64 %seen, ptr %pool)
  br i1 %job, label %work, label %wait
wait:
  %patient = icmp ult i64 %i, %yields
  br i1 %patient, label %yield, label %park
yield:
  call void @yield(ptr %pool)
  %i1 = add i64 %i, 1
  br label %look
park:
  ; Either the giver sees parked, or this thread sees its job: both write before they read, in one total order.
  %ignored = atomicrmw xchg ptr %parked.p, i64 1 seq_cst
  br label %sleep.check
sleep.check:
  %given.late = load atomic i64, ptr %slot seq_cst, align 8
  %nothing.late = icmp eq i64 %given.late, %seen
  br i1 %nothing.late, label %sleep, label %awake
sleep:
  %expected = and i64 %seen, 4294967295
  %slept = call i64 (i64, ...) %syscall(i64 $futex, ptr %slot, i64 128, i64 %expected, ptr null) ; FUTEX_WAIT_PRIVATE
  br label %sleep.check
awake:
  store atomic i64 0, ptr %parked.p monotonic, align 8
  br label %work
work:
  %seen1 = add i64 %seen, 1
  %fn = load ptr, ptr %fn.p
  %argument = load ptr, ptr %argument.p
  %index = load i64, ptr %index.p
  %result = call i64 %fn(ptr %argument, i64 %index)
  %left = atomicrmw sub ptr %pending.p, i64 1 release
  br label %idle
}

; Adds the address of buffer i to all its patches.
define internal void @patch(ptr %call, i64 %i, i64 %address) nounwind {
entry:
  %list.p = getelementptr %call, ptr %call, i64 0, i32 6, i64 %i
  %list = load ptr, ptr %list.p
  %count = load i64, ptr %list
  %first = getelementptr i64, ptr %list, i64 1
  br label %check
check:
  %j = phi i64 [ 0, %entry ], [ %j1, %write ]
  %more = icmp ult i64 %j, %count
  br i1 %more, label %write, label %done
write:
  %entry.p = getelementptr { ptr, i64 }, ptr %first, i64 %j
  %argument = load ptr, ptr %entry.p
  %offset.p = getelementptr { ptr, i64 }, ptr %entry.p, i64 0, i32 1
  %offset = load i64, ptr %offset.p
  %value = add i64 %address, %offset
  store i64 %value, ptr %argument
  %j1 = add i64 %j, 1
  br label %check
done:
  ret void
}

define i64 @sartor_call(ptr %call, ptr %addresses) nounwind {
entry:
  %count.p = getelementptr %call, ptr %call, i64 0, i32 1
  %count = load i64, ptr %count.p
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %next, label %go
next:
  %address.p = getelementptr i64, ptr %addresses, i64 %i
  %address = load i64, ptr %address.p
  call void @patch(ptr %call, i64 %i, i64 %address)
  %i1 = add i64 %i, 1
  br label %check
go:
  %run = load ptr, ptr %call
  %status = call i64 @sartor_run(ptr %run)
  ret i64 %status
}

define ptr @sartor_method(ptr %self, ptr %objects, i64 %given) nounwind {
entry:
  %call.p = getelementptr %array, ptr %self, i64 0, i32 2
  %call = load ptr, ptr %call.p
  %count.p = getelementptr %call, ptr %call, i64 0, i32 1
  %count = load i64, ptr %count.p
  %array.type.p = getelementptr %call, ptr %call, i64 0, i32 2
  %array.type = load ptr, ptr %array.type.p
  %fits = icmp eq i64 %given, %count
  br i1 %fits, label %check, label %finish
check:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %read, label %go
read:
  %object.p = getelementptr ptr, ptr %objects, i64 %i
  %object = load ptr, ptr %object.p
  %type.p = getelementptr %array, ptr %object, i64 0, i32 1
  %type = load ptr, ptr %type.p
  %is.array = icmp eq ptr %type, %array.type
  br i1 %is.array, label %next, label %finish
next:
  %address.p = getelementptr %array, ptr %object, i64 0, i32 2
  %address = load i64, ptr %address.p
  call void @patch(ptr %call, i64 %i, i64 %address)
  %i1 = add i64 %i, 1
  br label %check
go:
  %run = load ptr, ptr %call
  %save.p = getelementptr %call, ptr %call, i64 0, i32 4
  %save = load ptr, ptr %save.p
  %locked = icmp eq ptr %save, null
  br i1 %locked, label %run.locked, label %run.released
run.locked:
  %status.locked = call i64 @sartor_run(ptr %run)
  br label %finish
run.released:
  %restore.p = getelementptr %call, ptr %call, i64 0, i32 5
  %restore = load ptr, ptr %restore.p
  %state = call ptr %save()
  %status.released = call i64 @sartor_run(ptr %run)
  call void %restore(ptr %state)
  br label %finish
finish:
  %status = phi i64 [ 2, %entry ], [ 2, %read ], [ %status.locked, %run.locked ], [ %status.released, %run.released ]
  %long.p = getelementptr %call, ptr %call, i64 0, i32 3
  %long = load ptr, ptr %long.p
  %result = call ptr %long(i64 %status)
  ret ptr %result
}
"""
