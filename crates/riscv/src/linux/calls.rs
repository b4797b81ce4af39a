//! The table of system calls, and those on time and the process.

use super::{Activity, Errno, Host, Process, ProcessEnd, ProcessObserver, STACK_BYTES};

pub const EPERM: Errno = Errno(1);
pub const ENOENT: Errno = Errno(2);
pub const ESRCH: Errno = Errno(3);
pub const EINTR: Errno = Errno(4);
pub const EBADF: Errno = Errno(9);
pub const EAGAIN: Errno = Errno(11);
pub const ENOMEM: Errno = Errno(12);
pub const EFAULT: Errno = Errno(14);
pub const ENOTDIR: Errno = Errno(20);
pub const EINVAL: Errno = Errno(22);
pub const ENOTTY: Errno = Errno(25);
pub const ERANGE: Errno = Errno(34);
pub const ENAMETOOLONG: Errno = Errno(36);
pub const ENOSYS: Errno = Errno(38);
pub const ETIMEDOUT: Errno = Errno(110);

/// The process's number; threads have the following ones.
pub(super) const PID: u64 = 1000;
/// Number of the user and of the group.
const USER: u64 = 1000;
const NS_PER_S: u64 = 1_000_000_000;

impl<H: Host> Process<H> {
    /// Answers the call that a thread makes.
    pub(super) fn system_call<O: ProcessObserver>(&mut self, index: usize, observer: &mut O) {
        let hart = &self.threads[index].hart;
        let number = hart.x[17];
        let mut arguments = [0; 6];
        arguments.copy_from_slice(&hart.x[10..16]);
        let result = self
            .file_call(number, arguments)
            .or_else(|| self.path_call(number, arguments))
            .or_else(|| self.memory_call(number, arguments, index, observer))
            .or_else(|| self.signal_call(number, arguments, index))
            .unwrap_or_else(|| self.process_call(number, arguments, index, observer));
        if self.memory.take_code_change() {
            self.code.clear();
        }
        // A thread that waits gets its answer when it wakes.
        if matches!(self.threads[index].activity, Activity::Running | Activity::Ended) {
            self.threads[index].hart.x[10] = match result {
                Ok(value) => value,
                Err(Errno(number)) => -i64::from(number) as u64,
            };
        }
    }

    /// Eight bytes of guest memory.
    pub(super) fn double(&mut self, at: u64) -> Result<u64, Errno> {
        Ok(u64::from_le_bytes(self.memory.load(at)?))
    }

    fn process_call<O: ProcessObserver>(
        &mut self,
        number: u64,
        a: [u64; 6],
        index: usize,
        observer: &mut O,
    ) -> Result<u64, Errno> {
        match number {
            // sync: nothing is kept back.
            81 => {}
            93 => self.end_thread(index, a[0] as u8, observer),
            94 => self.end = Some(ProcessEnd::Exit(a[0] as u8)),
            96 => {
                self.threads[index].clear_at_exit = a[0];
                return Ok(PID + index as u64);
            }
            98 => return self.futex(index, a),
            101 => return self.sleep(a[0]),
            115 => return self.sleep_by_clock(a),
            73 if a[2] != 0 => return self.sleep(a[2]),
            73 => return self.pause(index),
            113 => {
                // CLOCK_REALTIME, its coarse and its alarm form, and CLOCK_TAI count from 1970.
                let clock = if matches!(a[0], 0 | 5 | 8 | 11) { 0 } else { 1 };
                let now = self.host.now_ns(clock);
                return self.put_time(a[1], now, 1);
            }
            114 => return if a[1] == 0 { Ok(0) } else { self.put_time(a[1], 1, 1) },
            // set_robust_list, sched_yield and priorities change nothing.
            99 | 118..=120 | 124 | 140 => {}
            // Priorities are given as 20 less the nice value.
            141 => return Ok(20),
            123 => {
                self.memory.store(a[2], 1u64.to_le_bytes())?;
                return Ok(8);
            }
            153 => return self.put_process_times(index, a[0]),
            160 => return self.put_names(a[0]),
            165 => self.memory.write(a[1], &[0; 144])?,
            166 => return Ok(std::mem::replace(&mut self.umask, a[0] as u32 & 0o777).into()),
            169 => {
                let now = self.host.now_ns(0);
                return self.put_time(a[0], now, 1000);
            }
            155 | 156 | 172 => return Ok(PID),
            // No supplementary groups.
            158 => {}
            173 => return Ok(1),
            174..=177 => return Ok(USER),
            178 => return Ok(PID + index as u64),
            220 => return self.clone_thread(index, a, observer),
            259 => self.code.clear(),
            261 => return self.limits(a),
            278 => {
                let mut bytes = vec![0; a[1].min(256) as usize];
                self.host.fill_random(&mut bytes);
                self.memory.write(a[0], &bytes)?;
                return Ok(bytes.len() as u64);
            }
            435 => return self.clone_by_structure(index, a, observer),
            _ => return Err(ENOSYS),
        }
        Ok(0)
    }

    /// `times`: instructions as if each took a nanosecond, in hundredths of a second.
    fn put_process_times(&mut self, index: usize, at: u64) -> Result<u64, Errno> {
        let ticks = self.threads[index].hart.instret / 10_000_000;
        if at != 0 {
            let fields = [ticks, 0, 0, 0];
            for (i, field) in fields.into_iter().enumerate() {
                self.memory.store(at.wrapping_add(8 * i as u64), field.to_le_bytes())?;
            }
        }
        Ok(ticks)
    }

    fn put_time(&mut self, at: u64, ns: u64, divisor: u64) -> Result<u64, Errno> {
        self.memory.store(at, (ns / NS_PER_S).to_le_bytes())?;
        self.memory.store(at.wrapping_add(8), (ns % NS_PER_S / divisor).to_le_bytes())?;
        Ok(0)
    }

    /// `uname`.
    fn put_names(&mut self, at: u64) -> Result<u64, Errno> {
        let mut bytes = [0; 6 * 65];
        // The release is the least that a C library of this decade accepts.
        for (i, text) in ["Linux", "terrace", "6.1.0", "#1", "riscv64", "(none)"].iter().enumerate()
        {
            bytes[65 * i..65 * i + text.len()].copy_from_slice(text.as_bytes());
        }
        self.memory.write(at, &bytes)?;
        Ok(0)
    }

    /// `prlimit64`: the stack has its size, the rest no limit; limits cannot be set.
    fn limits(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        if a[3] != 0 {
            let limit = if a[1] == 3 { STACK_BYTES } else { u64::MAX };
            self.memory.store(a[3], limit.to_le_bytes())?;
            self.memory.store(a[3].wrapping_add(8), u64::MAX.to_le_bytes())?;
        }
        Ok(0)
    }
}
