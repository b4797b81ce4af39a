//! System calls on files: all through the [`Host`].

use super::calls::{EBADF, EFAULT, EINVAL, ENAMETOOLONG, ENOENT, ENOTTY};
use super::{Errno, GuestFileStatus, Host, Process};

/// Bytes moved by one call of the host; more go in parts. Bounds memory.
const MOST_BYTES: u64 = 1 << 20;
/// Parts of one `readv` or `writev`, as Linux has it (`UIO_MAXIOV`).
const MOST_PARTS: u64 = 1024;
/// Bytes of a path, as Linux has it (`PATH_MAX`).
const MOST_PATH: u64 = 4096;
/// `AT_EMPTY_PATH`.
const AT_EMPTY_PATH: u64 = 0x1000;

impl<H: Host> Process<H> {
    fn path(&mut self, address: u64) -> Result<Vec<u8>, Errno> {
        let mut path = Vec::new();
        for offset in 0..MOST_PATH {
            match self.memory.load::<1>(address.wrapping_add(offset))?[0] {
                0 => return Ok(path),
                byte => path.push(byte),
            }
        }
        Err(ENAMETOOLONG)
    }

    /// `read` and `write`: one range of guest memory.
    fn transfer(&mut self, number: u64, fd: i32, at: u64, count: u64) -> Result<u64, Errno> {
        let mut bytes = vec![0; count.min(MOST_BYTES) as usize];
        if number == 64 || number == 66 {
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
            let start = u64::from_le_bytes(self.memory.load(at)?);
            let count = u64::from_le_bytes(self.memory.load(at.wrapping_add(8))?);
            if count == 0 {
                continue;
            }
            match self.transfer(number, a[0] as i32, start, count) {
                Ok(moved) => done += moved,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
            if done % MOST_BYTES != 0 && count > MOST_BYTES {
                break;
            }
        }
        Ok(done)
    }

    fn put_status(&mut self, at: u64, status: GuestFileStatus) -> Result<u64, Errno> {
        let mut bytes = [0; 128];
        let mut put = |at: usize, value: u64, size: usize| {
            bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        put(8, status.inode, 8);
        put(16, status.mode.into(), 4);
        put(20, 1, 4);
        put(24, 1000, 4);
        put(28, 1000, 4);
        put(48, status.size, 8);
        put(56, 4096, 4);
        put(64, status.size.div_ceil(512), 8);
        for time in [72, 88, 104] {
            put(time, status.modified_s as u64, 8);
        }
        self.memory.write(at, &bytes)?;
        Ok(0)
    }

    /// `pread64` by moving the position there and back.
    fn read_at(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let fd = a[0] as i32;
        let before = self.host.seek(fd, 0, 1)?;
        self.host.seek(fd, a[3] as i64, 0)?;
        let done = self.transfer(63, fd, a[1], a[2]);
        self.host.seek(fd, before as i64, 0)?;
        done
    }

    /// A call on files; `None` for other numbers.
    pub(super) fn file_call(&mut self, number: u64, a: [u64; 6]) -> Option<Result<u64, Errno>> {
        let fd = a[0] as i32;
        Some(match number {
            17 if a[1] < 2 => Err(EINVAL),
            17 => self.memory.write(a[0], b"/\0").map(|()| 2).map_err(Errno::from),
            25 if (1..=4).contains(&a[1]) => self.host.status(fd).map(|_| 0),
            29 => self.host.status(fd).and(Err(ENOTTY)),
            56 => self.open(a),
            57 => self.host.close(fd).map(|()| 0),
            62 => self.host.seek(fd, a[1] as i64, a[2] as u32),
            63 | 64 => self.transfer(number, fd, a[1], a[2]),
            65 | 66 => self.transfer_parts(a, number),
            67 => self.read_at(a),
            78 => self.path(a[1]).and(Err(EINVAL)),
            79 => self.status_by_path(a),
            80 => self.host.status(fd).and_then(|status| self.put_status(a[1], status)),
            48 => self.path(a[1]).and_then(|path| {
                let opened = self.host.open(&path, 0, 0)?;
                self.host.close(opened).map(|()| 0)
            }),
            _ => return None,
        })
    }

    fn open(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let path = self.path(a[1])?;
        // Only the root directory can be the one that relative paths begin at.
        if a[0] as i32 != -100 && !path.starts_with(b"/") {
            return Err(EBADF);
        }
        Ok(self.host.open(&path, a[2] as u32, a[3] as u32)? as u64)
    }

    fn status_by_path(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let path = self.path(a[1])?;
        if path.is_empty() {
            let empty = if a[3] & AT_EMPTY_PATH == 0 { ENOENT } else { EFAULT };
            let status = self.host.status(a[0] as i32);
            return if empty == ENOENT { Err(empty) } else { self.put_status(a[2], status?) };
        }
        let opened = self.host.open(&path, 0, 0)?;
        let status = self.host.status(opened);
        self.host.close(opened)?;
        self.put_status(a[2], status?)
    }
}
