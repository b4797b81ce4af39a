//! A guest's files and streams: below a root, or none.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use terrace_riscv::linux::{Errno, GuestFileStatus, Host};
use terrace_xbgas::clock::SimulatedClock;

const ENOENT: Errno = Errno(2);
const EIO: Errno = Errno(5);
const EBADF: Errno = Errno(9);
const EACCES: Errno = Errno(13);
const EINVAL: Errno = Errno(22);
const EMFILE: Errno = Errno(24);
const ESPIPE: Errno = Errno(29);
/// Open files at most, as `ulimit -n` has it by default.
const MAX_FILES: i32 = 1024;
/// Linux's `O_*` bits, as every architecture but a few has them.
const ACCESS: u32 = 3;
const CREATE: u32 = 0o100;
const EXCLUSIVE: u32 = 0o200;
const TRUNCATE: u32 = 0o1000;
const APPEND: u32 = 0o2000;

/// The host as a guest reaches it: the three streams of this process, and files below a root.
///
/// A path is taken from the root, `..` never leaves it, and what symbolic links lead to must lie
/// below it too. The guest cannot make links; if others change the folder meanwhile, they can lead
/// it astray.
#[derive(Debug)]
pub struct HostFiles {
    root: Option<PathBuf>,
    files: BTreeMap<i32, File>,
    started: Instant,
    random: u64,
    /// In place of this machine's clocks.
    clock: Option<SimulatedClock>,
}

fn errno(error: &Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(EIO.0))
}

impl HostFiles {
    /// Files below `root`; random numbers begin from `seed`.
    ///
    /// # Errors
    /// The root is not there.
    pub fn new(root: Option<&Path>, seed: u64) -> Result<Self, Error> {
        let root = root.map(Path::canonicalize).transpose()?;
        Ok(Self {
            root,
            files: BTreeMap::new(),
            started: Instant::now(),
            random: seed | 1,
            clock: None,
        })
    }

    /// Shows this clock in place of the machine's, where there is one.
    #[must_use]
    pub fn with_clock(self, clock: Option<SimulatedClock>) -> Self {
        Self { clock, ..self }
    }

    /// The place of a guest's path, whose last part need not exist.
    fn resolve(&self, path: &[u8]) -> Result<PathBuf, Errno> {
        let root = self.root.as_ref().ok_or(ENOENT)?;
        let mut place = root.clone();
        let mut depth = 0;
        for part in Path::new(std::ffi::OsStr::from_bytes(path)).components() {
            match part {
                Component::Normal(name) => {
                    place.push(name);
                    depth += 1;
                }
                Component::ParentDir if depth > 0 => {
                    place.pop();
                    depth -= 1;
                }
                _ => {}
            }
        }
        let below = |place: PathBuf| if place.starts_with(root) { Ok(place) } else { Err(EACCES) };
        match place.canonicalize() {
            Ok(real) => below(real),
            // A link to nothing would be followed where a file is made.
            Err(_) if place.symlink_metadata().is_ok() => Err(ENOENT),
            Err(_) => {
                let name = place.file_name().ok_or(ENOENT)?;
                let folder = place.parent().ok_or(ENOENT)?;
                below(folder.canonicalize().map_err(|e| errno(&e))?.join(name))
            }
        }
    }

    fn file(&mut self, descriptor: i32) -> Result<&mut File, Errno> {
        self.files.get_mut(&descriptor).ok_or(EBADF)
    }
}

fn status_of(metadata: &Metadata) -> GuestFileStatus {
    GuestFileStatus {
        mode: metadata.mode(),
        size: metadata.size(),
        inode: metadata.ino(),
        modified_s: metadata.mtime(),
    }
}

impl Host for HostFiles {
    fn read(&mut self, descriptor: i32, bytes: &mut [u8]) -> Result<usize, Errno> {
        match descriptor {
            0 => std::io::stdin().read(bytes),
            _ => self.file(descriptor)?.read(bytes),
        }
        .map_err(|e| errno(&e))
    }

    fn write(&mut self, descriptor: i32, bytes: &[u8]) -> Result<usize, Errno> {
        let whole = |mut stream: Box<dyn Write>| {
            stream.write_all(bytes)?;
            stream.flush()?;
            Ok(bytes.len())
        };
        match descriptor {
            1 => whole(Box::new(std::io::stdout())),
            2 => whole(Box::new(std::io::stderr())),
            _ => self.file(descriptor)?.write(bytes),
        }
        .map_err(|e: Error| errno(&e))
    }

    fn open(&mut self, path: &[u8], flags: u32, _: u32) -> Result<i32, Errno> {
        let place = self.resolve(path)?;
        if let Ok(metadata) = place.metadata() {
            // Devices and pipes would lead out of the root.
            if !metadata.is_file() && !metadata.is_dir() {
                return Err(EACCES);
            }
        }
        let descriptor = (3..MAX_FILES).find(|n| !self.files.contains_key(n)).ok_or(EMFILE)?;
        let access = flags & ACCESS;
        let file = OpenOptions::new()
            .read(access != 1)
            .write(access != 0 && flags & APPEND == 0)
            .append(access != 0 && flags & APPEND != 0)
            .create(flags & CREATE != 0 && access != 0)
            .create_new(flags & (CREATE | EXCLUSIVE) == CREATE | EXCLUSIVE && access != 0)
            .truncate(flags & TRUNCATE != 0 && access != 0 && flags & APPEND == 0)
            .open(place)
            .map_err(|e| errno(&e))?;
        self.files.insert(descriptor, file);
        Ok(descriptor)
    }

    fn close(&mut self, descriptor: i32) -> Result<(), Errno> {
        match descriptor {
            0..=2 => Ok(()),
            _ => self.files.remove(&descriptor).map(drop).ok_or(EBADF),
        }
    }

    fn seek(&mut self, descriptor: i32, offset: i64, whence: u32) -> Result<u64, Errno> {
        if (0..=2).contains(&descriptor) {
            return Err(ESPIPE);
        }
        let to = match whence {
            0 => SeekFrom::Start(u64::try_from(offset).map_err(|_| EINVAL)?),
            1 => SeekFrom::Current(offset),
            2 => SeekFrom::End(offset),
            _ => return Err(EINVAL),
        };
        self.file(descriptor)?.seek(to).map_err(|e| errno(&e))
    }

    fn status(&mut self, descriptor: i32) -> Result<GuestFileStatus, Errno> {
        let terminal = match descriptor {
            0 => std::io::stdin().is_terminal(),
            1 => std::io::stdout().is_terminal(),
            2 => std::io::stderr().is_terminal(),
            _ => {
                let metadata = self.file(descriptor)?.metadata().map_err(|e| errno(&e))?;
                return Ok(status_of(&metadata));
            }
        };
        // A character device of a terminal, or a pipe.
        let mode = if terminal { 0o20_620 } else { 0o10_600 };
        Ok(GuestFileStatus { mode, ..GuestFileStatus::default() })
    }

    fn now_ns(&mut self, clock: u32) -> u64 {
        if let Some(clock) = &self.clock {
            return clock.now_ns();
        }
        let now = match clock {
            0 => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            _ => self.started.elapsed(),
        };
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep_ns(&mut self, ns: u64) {
        match &self.clock {
            Some(clock) => clock.sleep_ns(ns),
            None => std::thread::sleep(Duration::from_nanos(ns)),
        }
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            *byte = (self.random >> 32) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_stays_below_its_root() {
        let folder = std::env::temp_dir().join(format!("terrace-riscv-{}", std::process::id()));
        let root = folder.join("root");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(folder.join("secret"), "secret").unwrap();
        std::fs::write(root.join("public"), "public").unwrap();
        for (link, to) in [("file", "../secret"), ("up", ".."), ("made", "../made")] {
            let _ = std::fs::remove_file(root.join(link));
            std::os::unix::fs::symlink(to, root.join(link)).unwrap();
        }
        let mut host = HostFiles::new(Some(&root), 1).unwrap();
        for path in ["/public", "public", "../public", "/../../public", "up/../public"] {
            let opened = host.open(path.as_bytes(), 0, 0).unwrap();
            let mut bytes = [0; 16];
            assert_eq!(host.read(opened, &mut bytes), Ok(6), "{path}");
            assert_eq!(host.close(opened), Ok(()));
        }
        for path in ["file", "up/secret", "/dev/null"] {
            assert!(host.open(path.as_bytes(), 0, 0).is_err(), "{path}");
        }
        for path in ["made", "up/new"] {
            assert!(host.open(path.as_bytes(), 1 | CREATE, 0).is_err(), "{path}");
        }
        assert!(!folder.join("made").exists() && !folder.join("new").exists());
        assert_eq!(HostFiles::new(None, 1).unwrap().open(b"public", 0, 0), Err(ENOENT));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
