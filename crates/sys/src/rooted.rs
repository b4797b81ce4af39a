//! A tree of files that no path, link or rename leads out of (kernel: `fs/open.c`, `openat2` with
//! `RESOLVE_IN_ROOT`, since Linux 5.6). Absolute paths and links count from its root.

use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `RESOLVE_IN_ROOT`, `RESOLVE_NO_MAGICLINKS`.
const IN_ROOT: u64 = 0x10;
const NO_MAGIC_LINKS: u64 = 0x02;
/// `struct open_how`.
const HOW_BYTES: usize = std::mem::size_of::<[u64; 3]>();
/// Times that a path is resolved again because somebody renamed a part of it meanwhile.
const ATTEMPTS: u32 = 128;

/// `O_ACCMODE`, and the flags passed on: `O_CREAT`, `O_EXCL`, `O_TRUNC`, `O_APPEND`, `O_DIRECTORY`,
/// `O_NOFOLLOW`.
const GENERIC_ACCESS: u32 = 3;
const GENERIC_FLAGS: [(u32, libc::c_int); 6] = [
    (0o100, libc::O_CREAT),
    (0o200, libc::O_EXCL),
    (0o1000, libc::O_TRUNC),
    (0o2000, libc::O_APPEND),
    (0o200_000, libc::O_DIRECTORY),
    (0o400_000, libc::O_NOFOLLOW),
];

/// What a path whose last part is a symbolic link means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    /// What the link leads to.
    Follow,
    /// The link.
    Keep,
}

/// The root of a tree.
#[derive(Debug)]
pub struct RootedTree {
    root: OwnedFd,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    /// Name.
    pub name: Vec<u8>,
    /// Number of the file.
    pub inode: u64,
    /// Its type: the bits of a mode that `S_IFMT` masks, zero where the file system does not say.
    pub file_type: u32,
}

/// A name in an open folder.
struct Place {
    folder: File,
    name: CString,
}

fn text(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

fn done(result: libc::c_int) -> Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

impl RootedTree {
    /// The tree below a folder.
    ///
    /// # Errors
    /// The folder cannot be opened, or the kernel has no `openat2`.
    pub fn below(folder: &Path) -> Result<Self> {
        let path = text(folder.as_os_str().as_bytes())?;
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: `path` is a zero-terminated string that outlives the call.
        let root = unsafe { libc::open(path.as_ptr(), flags) };
        if root < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the call above returned this descriptor, and nobody else has it.
        let tree = Self { root: unsafe { OwnedFd::from_raw_fd(root) } };
        tree.open_file(b".", libc::O_PATH, 0)?;
        Ok(tree)
    }

    /// Opens a file with `O_*` flags as generic architectures number them; a file that is made gets
    /// the permissions of `mode`. What would wait for somebody else, as a pipe does, does not.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(&self, path: &[u8], flags: u32, mode: u32) -> Result<File> {
        let mut host = libc::O_NONBLOCK | libc::O_NOCTTY | (flags & GENERIC_ACCESS) as libc::c_int;
        for (bit, flag) in GENERIC_FLAGS {
            host |= if flags & bit == 0 { 0 } else { flag };
        }
        self.open_file(path, host, mode)
    }

    /// What the kernel knows of a file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn status(&self, path: &[u8], last: LastLink) -> Result<Metadata> {
        let links = if last == LastLink::Keep { libc::O_NOFOLLOW } else { 0 };
        self.open_file(path, libc::O_PATH | links, 0)?.metadata()
    }

    fn open_file(&self, path: &[u8], flags: libc::c_int, mode: u32) -> Result<File> {
        let path = text(path)?;
        let flags = (flags | libc::O_CLOEXEC) as u64;
        let mode = if flags & libc::O_CREAT as u64 == 0 { 0 } else { u64::from(mode & 0o7777) };
        let how: [u64; 3] = [flags, mode, IN_ROOT | NO_MAGIC_LINKS];
        let mut attempts = ATTEMPTS;
        loop {
            let root = self.root.as_raw_fd();
            // SAFETY: `path` is a zero-terminated string and `how` a `struct open_how` of the
            // given size; both outlive the call.
            let opened = unsafe {
                libc::syscall(libc::SYS_openat2, root, path.as_ptr(), how.as_ptr(), HOW_BYTES)
            };
            if let Some(descriptor) = RawFd::try_from(opened).ok().filter(|fd| *fd >= 0) {
                // SAFETY: the call returned this descriptor, and nobody else has it.
                return Ok(unsafe { File::from_raw_fd(descriptor) });
            }
            let error = Error::last_os_error();
            let again = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
            attempts -= 1;
            if !again || attempts == 0 {
                return Err(error);
            }
        }
    }

    /// Folder and name of a path's last part, which need not exist.
    fn place(&self, path: &[u8]) -> Result<Place> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let path = &path[..end];
        let (folder, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..=at], &path[at + 1..]),
            None => (&b"."[..], path),
        };
        if matches!(name, b"" | b"." | b"..") {
            return Err(Error::from_raw_os_error(libc::EBUSY));
        }
        let folder = self.open_file(folder, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        Ok(Place { folder, name: text(name)? })
    }

    /// What a symbolic link holds.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` where it is none.
    pub fn link_target(&self, path: &[u8]) -> Result<Vec<u8>> {
        let link = self.open_file(path, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
        let mut bytes = vec![0_u8; libc::PATH_MAX as usize];
        let (fd, empty) = (link.as_raw_fd(), c"".as_ptr());
        // SAFETY: `bytes` has space for as many bytes as the call is reported, and outlives it.
        let length = unsafe { libc::readlinkat(fd, empty, bytes.as_mut_ptr().cast(), bytes.len()) };
        let length = usize::try_from(length).map_err(|_| match Error::last_os_error() {
            // So the kernel answers where an empty path names no link.
            e if e.raw_os_error() == Some(libc::ENOENT) => Error::from_raw_os_error(libc::EINVAL),
            e => e,
        })?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Makes a folder.
    ///
    /// # Errors
    /// The kernel's.
    pub fn make_folder(&self, path: &[u8], mode: u32) -> Result<()> {
        let Place { folder, name } = self.place(path)?;
        // SAFETY: `name` is a zero-terminated string that outlives the call.
        done(unsafe { libc::mkdirat(folder.as_raw_fd(), name.as_ptr(), mode & 0o7777) })
    }

    /// Removes a name that is no folder's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_file(&self, path: &[u8]) -> Result<()> {
        let Place { folder, name } = self.place(path)?;
        // SAFETY: `name` is a zero-terminated string that outlives the call.
        done(unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), 0) })
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_folder(&self, path: &[u8]) -> Result<()> {
        let Place { folder, name } = self.place(path)?;
        // SAFETY: `name` is a zero-terminated string that outlives the call.
        done(unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// The kernel's.
    pub fn make_link(&self, path: &[u8], target: &[u8]) -> Result<()> {
        let (Place { folder, name }, target) = (self.place(path)?, text(target)?);
        // SAFETY: both are zero-terminated strings that outlive the call.
        done(unsafe { libc::symlinkat(target.as_ptr(), folder.as_raw_fd(), name.as_ptr()) })
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add_name(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let (a, b) = (from.folder.as_raw_fd(), to.folder.as_raw_fd());
        // SAFETY: both are zero-terminated strings that outlive the call.
        done(unsafe { libc::linkat(a, from.name.as_ptr(), b, to.name.as_ptr(), 0) })
    }

    /// Renames.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let (a, b) = (from.folder.as_raw_fd(), to.folder.as_raw_fd());
        // SAFETY: both are zero-terminated strings that outlive the call.
        done(unsafe { libc::renameat(a, from.name.as_ptr(), b, to.name.as_ptr()) })
    }
}

/// The entries of a folder that was opened for reading, `.` and `..` included. The folder's
/// position is moved to its end.
///
/// # Errors
/// The kernel's.
pub fn folder_entries(folder: &File) -> Result<Vec<FolderEntry>> {
    let again = folder.try_clone()?;
    let descriptor = std::os::fd::IntoRawFd::into_raw_fd(again);
    // SAFETY: the descriptor is this function's, which passes it on.
    let stream = unsafe { libc::fdopendir(descriptor) };
    if stream.is_null() {
        let error = Error::last_os_error();
        // SAFETY: the call failed, so the descriptor is still this function's.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        return Err(error);
    }
    let mut entries = Vec::new();
    // SAFETY: `stream` is open until `closedir` below.
    unsafe { libc::rewinddir(stream) };
    loop {
        // SAFETY: `stream` is open, and no other thread has it.
        let entry = unsafe { libc::readdir(stream) };
        if entry.is_null() {
            break;
        }
        // SAFETY: the entry is valid until the next call; its name ends with a zero byte.
        let (entry, name) = unsafe { (&*entry, CStr::from_ptr((*entry).d_name.as_ptr())) };
        entries.push(FolderEntry {
            name: name.to_bytes().to_vec(),
            inode: entry.d_ino,
            file_type: u32::from(entry.d_type) << 12,
        });
    }
    // SAFETY: `stream` is open and not used again.
    unsafe { libc::closedir(stream) };
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("root/inner")).unwrap();
        std::fs::write(folder.join("secret"), "secret").unwrap();
        folder
    }

    #[test]
    fn no_path_leads_out_while_links_change() {
        let folder = folder("rooted");
        let tree = RootedTree::below(&folder.join("root")).unwrap();
        // A neighbour makes `door` a folder and a link out of the tree in turn.
        let ended = AtomicBool::new(false);
        let (door, inner) = (folder.join("root/door"), folder.join("root/inner"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    std::os::unix::fs::symlink(&folder, &door).unwrap();
                    std::fs::remove_file(&door).unwrap();
                    std::fs::rename(&inner, &door).unwrap();
                    std::fs::rename(&door, &inner).unwrap();
                }
            });
            for _ in 0..2000 {
                for path in [&b"door/secret"[..], b"door/../secret", b"door/../../secret"] {
                    assert!(tree.open_file(path, libc::O_RDONLY, 0).is_err());
                }
                assert!(tree.remove_file(b"door/secret").is_err());
                let _ = tree.make_folder(b"door/../made", 0o777);
            }
            ended.store(true, Ordering::Relaxed);
        });
        assert!(folder.join("secret").exists() && !folder.join("made").exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_tree_is_changed_and_listed() {
        let folder = folder("tree");
        let tree = RootedTree::below(&folder.join("root")).unwrap();
        tree.make_folder(b"/a", 0o755).unwrap();
        tree.make_link(b"a/link", b"/inner").unwrap();
        assert_eq!(tree.link_target(b"a/link").unwrap(), b"/inner");
        assert_eq!(tree.link_target(b"a").unwrap_err().raw_os_error(), Some(libc::EINVAL));
        tree.open_file(b"a/link/file", libc::O_CREAT | libc::O_WRONLY, 0o600).unwrap();
        tree.add_name(b"inner/file", b"a/second").unwrap();
        tree.rename(b"inner/file", b"a/first").unwrap();
        let opened = tree.open_file(b"a", libc::O_RDONLY, 0).unwrap();
        for _ in 0..2 {
            let mut names: Vec<Vec<u8>> =
                folder_entries(&opened).unwrap().into_iter().map(|entry| entry.name).collect();
            names.sort();
            assert_eq!(names, [&b"."[..], b"..", b"first", b"link", b"second"]);
        }
        for name in [&b"a/first"[..], b"a/second", b"a/link"] {
            tree.remove_file(name).unwrap();
        }
        tree.remove_folder(b"a/").unwrap();
        assert!(tree.remove_folder(b"/").is_err() && tree.remove_folder(b"..").is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
