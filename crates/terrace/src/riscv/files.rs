//! A guest's files and streams: below a root, or none.

use std::collections::BTreeMap;
use std::fs::{File, FileTimes, Metadata, Permissions};
use std::io::{Error, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use terrace_riscv::linux::{
    DuplicateNumber, Errno, FileTreeChange, GuestFileStatus, GuestFileTime, GuestFolderEntry, Host,
    LinkHandling, OpenFileChange,
};
use terrace_sys::{folder_entries, FolderEntry, LastLink, RootedTree};
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
/// What a descriptor stands for.
#[derive(Debug)]
enum OpenFile {
    Input,
    Output,
    Errors,
    File(File),
}

/// The host as a guest reaches it: the three streams of this process, and files below a root,
/// which no path leaves (see [`RootedTree`]).
#[derive(Debug)]
pub struct HostFiles {
    root: Option<RootedTree>,
    files: BTreeMap<i32, OpenFile>,
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
        let root = root.map(RootedTree::below).transpose()?;
        let streams = [OpenFile::Input, OpenFile::Output, OpenFile::Errors];
        let files = (0..).zip(streams).collect();
        Ok(Self { root, files, started: Instant::now(), random: seed | 1, clock: None })
    }

    /// Shows this clock in place of the machine's, where there is one.
    #[must_use]
    pub fn with_clock(self, clock: Option<SimulatedClock>) -> Self {
        Self { clock, ..self }
    }

    fn tree(&self) -> Result<&RootedTree, Errno> {
        self.root.as_ref().ok_or(ENOENT)
    }

    fn file(&mut self, descriptor: i32) -> Result<&mut File, Errno> {
        match self.files.get_mut(&descriptor) {
            Some(OpenFile::File(file)) => Ok(file),
            Some(_) => Err(ESPIPE),
            None => Err(EBADF),
        }
    }

    fn lowest_free(&self, from: i32) -> Result<i32, Errno> {
        (from.max(0)..MAX_FILES).find(|n| !self.files.contains_key(n)).ok_or(EMFILE)
    }
}

fn status_of(metadata: &Metadata) -> GuestFileStatus {
    let time = |s, ns: i64| GuestFileTime { s, ns: ns as u32 };
    GuestFileStatus {
        mode: metadata.mode(),
        size: metadata.size(),
        inode: metadata.ino(),
        device: metadata.dev(),
        links: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
        user: metadata.uid(),
        group: metadata.gid(),
        blocks: metadata.blocks(),
        accessed: time(metadata.atime(), metadata.atime_nsec()),
        modified: time(metadata.mtime(), metadata.mtime_nsec()),
        changed: time(metadata.ctime(), metadata.ctime_nsec()),
    }
}

fn system_time(time: GuestFileTime) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::new(u64::try_from(time.s).ok()?, time.ns))
}

impl Host for HostFiles {
    fn read(&mut self, descriptor: i32, bytes: &mut [u8]) -> Result<usize, Errno> {
        match self.files.get_mut(&descriptor) {
            Some(OpenFile::Input) => std::io::stdin().read(bytes),
            Some(OpenFile::File(file)) => file.read(bytes),
            _ => return Err(EBADF),
        }
        .map_err(|e| errno(&e))
    }

    fn write(&mut self, descriptor: i32, bytes: &[u8]) -> Result<usize, Errno> {
        let whole = |mut stream: Box<dyn Write>| {
            stream.write_all(bytes)?;
            stream.flush()?;
            Ok(bytes.len())
        };
        match self.files.get_mut(&descriptor) {
            Some(OpenFile::Output) => whole(Box::new(std::io::stdout())),
            Some(OpenFile::Errors) => whole(Box::new(std::io::stderr())),
            Some(OpenFile::File(file)) => file.write(bytes),
            _ => return Err(EBADF),
        }
        .map_err(|e: Error| errno(&e))
    }

    fn open(&mut self, path: &[u8], flags: u32, mode: u32) -> Result<i32, Errno> {
        let descriptor = self.lowest_free(0)?;
        let file = self.tree()?.open(path, flags, mode).map_err(|e| errno(&e))?;
        let metadata = file.metadata().map_err(|e| errno(&e))?;
        // Devices and pipes would lead out of the root.
        if !metadata.is_file() && !metadata.is_dir() {
            return Err(EACCES);
        }
        self.files.insert(descriptor, OpenFile::File(file));
        Ok(descriptor)
    }

    fn close(&mut self, descriptor: i32) -> Result<(), Errno> {
        self.files.remove(&descriptor).map(drop).ok_or(EBADF)
    }

    fn seek(&mut self, descriptor: i32, offset: i64, whence: u32) -> Result<u64, Errno> {
        let to = match whence {
            0 => SeekFrom::Start(u64::try_from(offset).map_err(|_| EINVAL)?),
            1 => SeekFrom::Current(offset),
            2 => SeekFrom::End(offset),
            _ => return Err(EINVAL),
        };
        self.file(descriptor)?.seek(to).map_err(|e| errno(&e))
    }

    fn status(&mut self, descriptor: i32) -> Result<GuestFileStatus, Errno> {
        let terminal = match self.files.get(&descriptor).ok_or(EBADF)? {
            OpenFile::Input => std::io::stdin().is_terminal(),
            OpenFile::Output => std::io::stdout().is_terminal(),
            OpenFile::Errors => std::io::stderr().is_terminal(),
            OpenFile::File(file) => {
                return Ok(status_of(&file.metadata().map_err(|e| errno(&e))?));
            }
        };
        // A character device of a terminal, or a pipe.
        let mode = if terminal { 0o20_620 } else { 0o10_600 };
        Ok(GuestFileStatus { mode, links: 1, ..GuestFileStatus::default() })
    }

    fn status_at(&mut self, path: &[u8], links: LinkHandling) -> Result<GuestFileStatus, Errno> {
        let last = match links {
            LinkHandling::Follow => LastLink::Follow,
            LinkHandling::Keep => LastLink::Keep,
        };
        self.tree()?.status(path, last).map(|m| status_of(&m)).map_err(|e| errno(&e))
    }

    fn link_target(&mut self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        self.tree()?.link_target(path).map_err(|e| errno(&e))
    }

    fn entries(&mut self, descriptor: i32) -> Result<Vec<GuestFolderEntry>, Errno> {
        let entries = folder_entries(self.file(descriptor)?).map_err(|e| errno(&e))?;
        let guest =
            |FolderEntry { name, inode, file_type: mode }| GuestFolderEntry { name, inode, mode };
        Ok(entries.into_iter().map(guest).collect())
    }

    fn change_tree(&mut self, change: FileTreeChange<'_>) -> Result<(), Errno> {
        let tree = self.tree()?;
        match change {
            FileTreeChange::MakeFolder { path, mode } => tree.make_folder(path, mode),
            FileTreeChange::RemoveFile(path) => tree.remove_file(path),
            FileTreeChange::RemoveFolder(path) => tree.remove_folder(path),
            FileTreeChange::MakeLink { path, target } => tree.make_link(path, target),
            FileTreeChange::AddName { from, to } => tree.add_name(from, to),
            FileTreeChange::Rename { from, to } => tree.rename(from, to),
        }
        .map_err(|e| errno(&e))
    }

    fn change_file(&mut self, descriptor: i32, change: OpenFileChange) -> Result<(), Errno> {
        let file = self.file(descriptor)?;
        match change {
            OpenFileChange::Size(bytes) => file.set_len(bytes),
            OpenFileChange::Mode(mode) => file.set_permissions(Permissions::from_mode(mode)),
            OpenFileChange::Times([accessed, modified]) => {
                let mut times = FileTimes::new();
                if let Some(accessed) = accessed {
                    times = times.set_accessed(system_time(accessed).ok_or(EINVAL)?);
                }
                if let Some(modified) = modified {
                    times = times.set_modified(system_time(modified).ok_or(EINVAL)?);
                }
                file.set_times(times)
            }
        }
        .map_err(|e| errno(&e))
    }

    fn duplicate(&mut self, descriptor: i32, to: DuplicateNumber) -> Result<i32, Errno> {
        let new = match to {
            DuplicateNumber::From(from) => self.lowest_free(from)?,
            DuplicateNumber::Exactly(number) if (0..MAX_FILES).contains(&number) => number,
            DuplicateNumber::Exactly(_) => return Err(EBADF),
        };
        let file = match self.files.get(&descriptor).ok_or(EBADF)? {
            OpenFile::Input => OpenFile::Input,
            OpenFile::Output => OpenFile::Output,
            OpenFile::Errors => OpenFile::Errors,
            OpenFile::File(file) => OpenFile::File(file.try_clone().map_err(|e| errno(&e))?),
        };
        self.files.insert(new, file);
        Ok(new)
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

    const CREATE: u32 = 0o100;

    #[test]
    fn a_guest_stays_below_its_root() {
        let folder = std::env::temp_dir().join(format!("terrace-riscv-{}", std::process::id()));
        let root = folder.join("root");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(folder.join("secret"), "secret").unwrap();
        std::fs::write(root.join("public"), "public").unwrap();
        for (link, to) in [("file", "../secret"), ("up", ".."), ("made", "../created")] {
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
        // As below a changed root, what leads up from it leads to it.
        for path in ["made", "up/new"] {
            assert!(host.open(path.as_bytes(), 1 | CREATE, 0).is_ok(), "{path}");
        }
        assert!(root.join("created").exists() && root.join("new").exists());
        assert!(!folder.join("created").exists() && !folder.join("new").exists());
        assert_eq!(HostFiles::new(None, 1).unwrap().open(b"public", 0, 0), Err(ENOENT));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
