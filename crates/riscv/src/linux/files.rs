//! System calls on open files: all through the [`Host`].

use super::calls::{EBADF, EINVAL, ENOTDIR, ENOTTY};
use super::{DuplicateNumber, Errno, GuestFileStatus, GuestFolderEntry, Host, OpenFileChange};
use super::{GuestFileTime, Process};

/// Bytes moved by one call of the host; more go in parts. Bounds memory.
const MOST_BYTES: u64 = 1 << 20;
/// Parts of one `readv` or `writev`, as Linux has it (`UIO_MAXIOV`).
const MOST_PARTS: u64 = 1024;
/// `UTIME_NOW` and `UTIME_OMIT`.
const UTIME_NOW: u64 = (1 << 30) - 1;
const UTIME_OMIT: u64 = (1 << 30) - 2;
/// Bytes of `struct pollfd`.
const POLL_ENTRY: u64 = 8;

/// A folder that the guest has open.
#[derive(Debug, Clone)]
pub(super) struct OpenFolder {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// Entries, where they were asked for, and how many the guest has seen.
    entries: Option<(Vec<GuestFolderEntry>, usize)>,
}

impl OpenFolder {
    pub const fn new(path: Vec<u8>) -> Self {
        Self { path, entries: None }
    }
}

impl<H: Host> Process<H> {
    /// `read` and `write`: one range of guest memory.
    fn transfer(&mut self, number: u64, fd: i32, at: u64, count: u64) -> Result<u64, Errno> {
        let mut bytes = vec![0; count.min(MOST_BYTES) as usize];
        if matches!(number, 64 | 66 | 68) {
            self.memory.read(at, &mut bytes)?;
            return Ok(self.host.write(fd, &bytes)? as u64);
        }
        let read = self.host.read(fd, &mut bytes)?;
        self.memory.write(at, bytes.get(..read).ok_or(EINVAL)?)?;
        Ok(read as u64)
    }

    fn transfer_parts(&mut self, a: [u64; 6], number: u64) -> Result<u64, Errno> {
        if a[2] > MOST_PARTS {
            return Err(EINVAL);
        }
        let mut done = 0;
        for part in 0..a[2] {
            let at = a[1].wrapping_add(16 * part);
            let (start, count) = (self.double(at)?, self.double(at.wrapping_add(8))?);
            if count == 0 {
                continue;
            }
            let moved = match self.transfer(number, a[0] as i32, start, count) {
                Ok(moved) => moved,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            };
            done += moved;
            if moved < count {
                break;
            }
        }
        Ok(done)
    }

    /// `pread64` and `pwrite64` by moving the position there and back.
    fn transfer_at(&mut self, a: [u64; 6], number: u64) -> Result<u64, Errno> {
        let fd = a[0] as i32;
        let before = self.host.seek(fd, 0, 1)?;
        self.host.seek(fd, a[3] as i64, 0)?;
        let done = self.transfer(number, fd, a[1], a[2]);
        self.host.seek(fd, before as i64, 0)?;
        done
    }

    /// A call on open files; `None` for other numbers.
    pub(super) fn file_call(&mut self, number: u64, a: [u64; 6]) -> Option<Result<u64, Errno>> {
        let fd = a[0] as i32;
        Some(match number {
            23 => self.duplicate(fd, DuplicateNumber::From(0)),
            24 if a[0] as i32 == a[1] as i32 => Err(EINVAL),
            24 => self.duplicate(fd, DuplicateNumber::Exactly(a[1] as i32)),
            25 => self.control(fd, a[1], a[2]),
            29 => self.host.status(fd).and(Err(ENOTTY)),
            46 => self.host.change_file(fd, OpenFileChange::Size(a[1])).map(|()| 0),
            52 => self.host.change_file(fd, OpenFileChange::Mode(a[1] as u32)).map(|()| 0),
            57 => {
                self.folders.remove(&fd);
                self.host.close(fd).map(|()| 0)
            }
            61 => self.folder_entries(a),
            62 => self.seek(fd, a[1] as i64, a[2] as u32),
            63 | 64 => self.transfer(number, fd, a[1], a[2]),
            65 | 66 => self.transfer_parts(a, number),
            67 | 68 => self.transfer_at(a, number),
            73 if a[1] > 0 => self.poll(a),
            80 => self.host.status(fd).and_then(|status| self.put_status(a[1], status)),
            82 | 83 => self.host.status(fd).map(|_| 0),
            // posix_fadvise: advice changes nothing.
            223 => self.host.status(fd).map(|_| 0),
            _ => return None,
        })
    }

    fn duplicate(&mut self, fd: i32, to: DuplicateNumber) -> Result<u64, Errno> {
        let new = self.host.duplicate(fd, to)?;
        match self.folders.get(&fd).cloned() {
            Some(folder) => self.folders.insert(new, folder),
            None => self.folders.remove(&new),
        };
        Ok(new as u64)
    }

    /// `fcntl`: duplicates; flags are accepted, since nothing is executed in the process's place.
    fn control(&mut self, fd: i32, command: u64, value: u64) -> Result<u64, Errno> {
        match command {
            0 | 1030 => {
                let from = i32::try_from(value).map_err(|_| EINVAL)?;
                self.duplicate(fd, DuplicateNumber::From(from))
            }
            1..=4 => {
                let terminal = matches!(fd, 0..=2) && command == 3;
                self.host.status(fd).map(|_| if terminal { 2 } else { 0 })
            }
            _ => Err(EINVAL),
        }
    }

    fn seek(&mut self, fd: i32, offset: i64, whence: u32) -> Result<u64, Errno> {
        if let (Some(folder), 0, 0) = (self.folders.get_mut(&fd), offset, whence) {
            folder.entries = None;
            return Ok(0);
        }
        self.host.seek(fd, offset, whence)
    }

    /// `getdents64`.
    fn folder_entries(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let fd = a[0] as i32;
        let folder = self.folders.get_mut(&fd).ok_or(ENOTDIR)?;
        if folder.entries.is_none() {
            folder.entries = Some((self.host.entries(fd)?, 0));
        }
        let (entries, seen) = folder.entries.as_mut().ok_or(EBADF)?;
        let mut bytes = Vec::new();
        for entry in &entries[*seen..] {
            let length = (19 + entry.name.len() + 1).next_multiple_of(8);
            if (bytes.len() + length) as u64 > a[2] {
                break;
            }
            *seen += 1;
            let end = bytes.len() + length;
            bytes.extend_from_slice(&entry.inode.to_le_bytes());
            bytes.extend_from_slice(&(*seen as u64).to_le_bytes());
            bytes.extend_from_slice(&(length as u16).to_le_bytes());
            bytes.push((entry.mode >> 12) as u8);
            bytes.extend_from_slice(&entry.name);
            bytes.resize(end, 0);
        }
        if bytes.is_empty() && *seen < entries.len() {
            return Err(EINVAL);
        }
        self.memory.write(a[1], &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// `ppoll`: a file or stream is ready for whatever is asked, as Linux has it of files.
    fn poll(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        if a[1] > MOST_PARTS {
            return Err(EINVAL);
        }
        let mut ready = 0;
        for at in (0..a[1]).map(|i| a[0].wrapping_add(POLL_ENTRY * i)) {
            let fd = i32::from_le_bytes(self.memory.load(at)?);
            let wanted = u16::from_le_bytes(self.memory.load(at.wrapping_add(4))?);
            let answer = match fd {
                ..0 => 0,
                // POLLIN, POLLOUT; POLLNVAL.
                _ if self.host.status(fd).is_ok() => wanted & 5,
                _ => 0x20,
            };
            ready += u64::from(answer != 0);
            self.memory.store(at.wrapping_add(6), answer.to_le_bytes())?;
        }
        Ok(ready)
    }

    /// Writes `struct stat`.
    pub(super) fn put_status(&mut self, at: u64, status: GuestFileStatus) -> Result<u64, Errno> {
        let mut bytes = [0; 128];
        let mut put = |at: usize, value: u64, size: usize| {
            bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        put(0, status.device, 8);
        put(8, status.inode, 8);
        put(16, status.mode.into(), 4);
        put(20, status.links.into(), 4);
        put(24, status.user.into(), 4);
        put(28, status.group.into(), 4);
        put(48, status.size, 8);
        put(56, 4096, 4);
        put(64, status.blocks, 8);
        let times = [status.accessed, status.modified, status.changed];
        for (at, time) in [72, 88, 104].into_iter().zip(times) {
            put(at, time.s as u64, 8);
            put(at + 8, time.ns.into(), 8);
        }
        self.memory.write(at, &bytes)?;
        Ok(0)
    }

    /// Writes `struct statx` with the basic fields.
    pub(super) fn put_extended_status(
        &mut self,
        at: u64,
        status: GuestFileStatus,
    ) -> Result<u64, Errno> {
        let mut bytes = [0; 256];
        let mut put = |at: usize, value: u64, size: usize| {
            bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        put(0, 0x7ff, 4);
        put(4, 4096, 4);
        put(16, status.links.into(), 4);
        put(20, status.user.into(), 4);
        put(24, status.group.into(), 4);
        put(28, status.mode.into(), 2);
        put(32, status.inode, 8);
        put(40, status.size, 8);
        put(48, status.blocks, 8);
        let times = [status.accessed, status.changed, status.modified];
        for (at, time) in [64, 96, 112].into_iter().zip(times) {
            put(at, time.s as u64, 8);
            put(at + 8, time.ns.into(), 4);
        }
        // The low bits of `dev_t`: 8 of minor, 12 of major.
        put(136, status.device >> 8 & 0xfff, 4);
        put(140, status.device & 0xff | status.device >> 12 & 0xff_ff00, 4);
        self.memory.write(at, &bytes)?;
        Ok(0)
    }

    /// The two times that `utimensat` is given.
    pub(super) fn file_times(&mut self, at: u64) -> Result<[Option<GuestFileTime>; 2], Errno> {
        let now = self.host.now_ns(0);
        let now =
            GuestFileTime { s: (now / 1_000_000_000) as i64, ns: (now % 1_000_000_000) as u32 };
        let mut times = [Some(now); 2];
        for (i, time) in times.iter_mut().enumerate().take(if at == 0 { 0 } else { 2 }) {
            let at = at.wrapping_add(16 * i as u64);
            let (s, ns) = (self.double(at)? as i64, self.double(at.wrapping_add(8))?);
            *time = match ns {
                UTIME_NOW => Some(now),
                UTIME_OMIT => None,
                0..=999_999_999 => Some(GuestFileTime { s, ns: ns as u32 }),
                _ => return Err(EINVAL),
            };
        }
        Ok(times)
    }
}
