//! System calls on threads and time: clone, futex, sleep.

use super::calls::{EAGAIN, EINVAL, ENOSYS, PID};
use super::signals::ThreadSignals;
use super::{Activity, Errno, Host, Process, ProcessEvent, ProcessObserver, Thread, MOST_THREADS};

/// `CLONE_VM | CLONE_THREAD`, `CLONE_PARENT_SETTID`, `CLONE_CHILD_CLEARTID`,
/// `CLONE_CHILD_SETTID`, `CLONE_SETTLS`.
const CLONE_SHARED: u64 = 0x1_0100;
const CLONE_PARENT_SETTID: u64 = 0x10_0000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;
const CLONE_SETTLS: u64 = 0x8_0000;
/// Bytes of `struct clone_args` in its first version.
const CLONE_ARGUMENTS: u64 = 64;
const NS_PER_S: u64 = 1_000_000_000;

impl<H: Host> Process<H> {
    /// `clone3` in terms of `clone`.
    pub(super) fn clone_by_structure<O: ProcessObserver>(
        &mut self,
        index: usize,
        a: [u64; 6],
        observer: &mut O,
    ) -> Result<u64, Errno> {
        if a[1] < CLONE_ARGUMENTS {
            return Err(EINVAL);
        }
        let mut fields = [0; 8];
        for (i, field) in fields.iter_mut().enumerate() {
            *field = self.double(a[0].wrapping_add(8 * i as u64))?;
        }
        let [flags, _, child_at, parent_at, _, stack, stack_bytes, pointer] = fields;
        let top = stack.wrapping_add(stack_bytes);
        self.clone_thread(index, [flags, top, parent_at, pointer, child_at, 0], observer)
    }

    pub(super) fn clone_thread<O: ProcessObserver>(
        &mut self,
        index: usize,
        a: [u64; 6],
        observer: &mut O,
    ) -> Result<u64, Errno> {
        let [flags, stack, parent_at, pointer, child_at, _] = a;
        if flags & CLONE_SHARED != CLONE_SHARED {
            return Err(ENOSYS);
        }
        if self.threads.len() >= MOST_THREADS {
            return Err(EAGAIN);
        }
        let number = self.threads.len();
        let tid = PID + number as u64;
        for (flag, at) in [(CLONE_PARENT_SETTID, parent_at), (CLONE_CHILD_SETTID, child_at)] {
            if flags & flag != 0 {
                self.memory.store(at, (tid as u32).to_le_bytes())?;
            }
        }
        let mut hart = self.threads[index].hart.clone();
        let instret = hart.instret;
        hart.instret = 0;
        hart.x[2] = stack;
        hart.x[10] = 0;
        if flags & CLONE_SETTLS != 0 {
            hart.x[4] = pointer;
        }
        let clear_at_exit = if flags & CLONE_CHILD_CLEARTID != 0 { child_at } else { 0 };
        let activity = Activity::Running;
        let signals = ThreadSignals::new(Some(&self.threads[index].signals));
        self.threads.push(Thread { hart, activity, woken_by: None, clear_at_exit, signals });
        observer.enter(number as u32);
        observer.event(instret, ProcessEvent::ThreadStart);
        observer.enter(index as u32);
        Ok(tid)
    }

    pub(super) fn futex(&mut self, index: usize, a: [u64; 6]) -> Result<u64, Errno> {
        let [address, operation, value, timeout, _, bits] = a;
        // Without the bits for private futexes and the real-time clock.
        match operation & 0x7f {
            command @ (0 | 9) => {
                let now = u32::from_le_bytes(self.memory.load(address)?);
                if now != value as u32 {
                    return Err(EAGAIN);
                }
                let mask = if command == 9 { bits as u32 } else { u32::MAX };
                let deadline_ns = match timeout {
                    0 => None,
                    at if command == 9 => Some(self.time_at(at)?),
                    at => Some(self.time_at(at)?.saturating_add(self.host.now_ns(1))),
                };
                let expected = now;
                self.threads[index].activity =
                    Activity::Waiting { address, expected, mask, deadline_ns };
                Ok(0)
            }
            command @ (1 | 10) => {
                let bits = if command == 10 { bits as u32 } else { u32::MAX };
                Ok(self.wake(index, address, value.min(i32::MAX as u64), bits))
            }
            _ => Err(ENOSYS),
        }
    }

    pub(super) fn time_at(&mut self, at: u64) -> Result<u64, Errno> {
        let (seconds, ns) = (self.double(at)?, self.double(at.wrapping_add(8))?);
        if ns >= NS_PER_S {
            return Err(EINVAL);
        }
        Ok(seconds.saturating_mul(NS_PER_S).saturating_add(ns))
    }

    pub(super) fn sleep(&mut self, at: u64) -> Result<u64, Errno> {
        let ns = self.time_at(at)?;
        self.host.sleep_ns(ns);
        Ok(0)
    }

    /// `clock_nanosleep`: by a span, or until a time (`TIMER_ABSTIME`).
    pub(super) fn sleep_by_clock(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let ns = self.time_at(a[2])?;
        let now = if a[1] & 1 == 0 { 0 } else { self.host.now_ns(a[0] as u32) };
        self.host.sleep_ns(ns.saturating_sub(now));
        Ok(0)
    }
}
