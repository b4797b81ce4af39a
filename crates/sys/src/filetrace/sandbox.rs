//! A place for a command in which all files of the machine are read-only (`mount_setattr(2)`).
//!
//! The working folder and those of temporary files are filled anew, with what is in them bound in:
//! files can be made there, in memory.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Folders that stay writable.
const WRITABLE: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// A folder with more in it stays read-only: each of its files takes a mount, and the kernel allows
/// 100,000 (`fs.mount-max`).
const MAX_BOUND: usize = 4096;
/// Memory that files made in one folder may take: as much as the lab carries.
const ROOM: &str = "size=256m,mode=1777";

/// Everything that is named between fork and exec, where nothing may be allocated.
pub(super) struct Sandbox {
    maps: [(CString, Vec<u8>); 3],
    folders: Vec<Folder>,
    strings: Strings,
    cwd: CString,
}

struct Strings {
    root: CString,
    tmpfs: CString,
    space: CString,
}

/// A folder that is filled anew.
struct Folder {
    path: CString,
    entries: Vec<Entry>,
}

struct Entry {
    /// Name in the folder.
    name: CString,
    /// Whole path.
    path: CString,
    kind: Kind,
}

enum Kind {
    Folder,
    File,
    Link(CString),
}

impl Sandbox {
    /// Look at what is there.
    pub(super) fn prepare(cwd: &Path) -> Self {
        // SAFETY: no arguments; they cannot fail.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let file = |name: &str, text: String| (string(OsStr::new(name)), text.into_bytes());
        let mut paths: Vec<&Path> = WRITABLE.map(Path::new).into();
        if !paths.contains(&cwd) {
            paths.push(cwd);
        }
        Self {
            maps: [
                file("/proc/self/setgroups", "deny".into()),
                file("/proc/self/uid_map", format!("{user} {user} 1")),
                file("/proc/self/gid_map", format!("{group} {group} 1")),
            ],
            folders: paths.into_iter().filter_map(Folder::look).collect(),
            strings: Strings {
                root: string(OsStr::new("/")),
                tmpfs: string(OsStr::new("tmpfs")),
                space: string(OsStr::new(ROOM)),
            },
            cwd: string(cwd.as_os_str()),
        }
    }

    /// Move the calling process, freshly forked, into it, and have its parent trace it.
    pub(super) fn enter(&self) -> io::Result<()> {
        self.own_namespaces()?;
        let Strings { root, tmpfs, space } = &self.strings;
        let attributes = [libc::MOUNT_ATTR_RDONLY, 0, 0, 0];
        // SAFETY: NUL-terminated strings and a struct mount_attr (four numbers) that live across
        // the calls; nothing else is touched.
        unsafe {
            let private = libc::MS_REC | libc::MS_PRIVATE;
            check(libc::mount(
                std::ptr::null(),
                root.as_ptr(),
                std::ptr::null(),
                private,
                std::ptr::null(),
            ))?;
            check(libc::syscall(
                libc::SYS_mount_setattr,
                libc::AT_FDCWD,
                root.as_ptr(),
                libc::AT_RECURSIVE,
                attributes.as_ptr(),
                std::mem::size_of_val(&attributes),
            ) as i32)?;
        }
        for folder in &self.folders {
            // One that cannot be filled anew stays read-only.
            let _ = folder.fill(tmpfs, space);
        }
        // The working directory, from before, is under what was mounted over it.
        // SAFETY: numbers and no memory; a string that lives across the call.
        unsafe {
            check(libc::chdir(self.cwd.as_ptr()))?;
            libc::setsid();
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            check(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) as i32)
        }
    }

    /// Without a user namespace where that is allowed: files of other users can be read then.
    fn own_namespaces(&self) -> io::Result<()> {
        let kinds = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC;
        // SAFETY: numbers only; the process has one thread.
        if unsafe { libc::unshare(kinds) } == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        check(unsafe { libc::unshare(kinds | libc::CLONE_NEWUSER) })?;
        for (path, text) in &self.maps {
            // SAFETY: a NUL-terminated string, and `text`'s bytes with their length.
            unsafe {
                let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                check(fd)?;
                let put = libc::write(fd, text.as_ptr().cast(), text.len());
                let error = io::Error::last_os_error();
                libc::close(fd);
                if put != text.len() as isize {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Folder {
    fn look(path: &Path) -> Option<Self> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path).ok()? {
            let entry = entry.ok()?;
            let kind = entry.file_type().ok()?;
            let kind = if kind.is_symlink() {
                Kind::Link(string(std::fs::read_link(entry.path()).ok()?.as_os_str()))
            } else if kind.is_dir() {
                Kind::Folder
            } else {
                Kind::File
            };
            let (name, path) = (string(&entry.file_name()), string(entry.path().as_os_str()));
            entries.push(Entry { name, path, kind });
            if entries.len() > MAX_BOUND {
                return None;
            }
        }
        Some(Self { path: string(path.as_os_str()), entries })
    }

    fn fill(&self, tmpfs: &CString, space: &CString) -> io::Result<()> {
        // SAFETY: every pointer is a NUL-terminated string that lives across the call.
        unsafe {
            let old = libc::open(self.path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            check(old)?;
            let (tmpfs, space) = (tmpfs.as_ptr(), space.as_ptr());
            check(libc::mount(tmpfs, self.path.as_ptr(), tmpfs, 0, space.cast()))?;
            for entry in &self.entries {
                // What cannot be bound is missed; the others are worth having.
                let _ = entry.bind(old);
            }
            libc::close(old);
        }
        Ok(())
    }
}

impl Entry {
    /// # Safety
    /// `old` is a descriptor of the folder as it was.
    unsafe fn bind(&self, old: i32) -> io::Result<()> {
        const OPEN_TREE_CLONE: libc::c_uint = 1;
        const EMPTY_PATH: libc::c_uint = 4;
        let path = self.path.as_ptr();
        let empty = c"".as_ptr();
        // SAFETY: NUL-terminated strings that live across the calls; descriptors that are closed
        // once.
        unsafe {
            match &self.kind {
                Kind::Link(target) => return check(libc::symlink(target.as_ptr(), path)),
                Kind::Folder => check(libc::mkdir(path, 0o755))?,
                Kind::File => {
                    let made = libc::open(path, libc::O_CREAT | libc::O_CLOEXEC, 0o644);
                    check(made)?;
                    libc::close(made);
                }
            }
            let flags = OPEN_TREE_CLONE
                | libc::AT_RECURSIVE as libc::c_uint
                | libc::O_CLOEXEC as libc::c_uint;
            let tree = libc::syscall(libc::SYS_open_tree, old, self.name.as_ptr(), flags) as i32;
            check(tree)?;
            let to = libc::AT_FDCWD;
            let moved = libc::syscall(libc::SYS_move_mount, tree, empty, to, path, EMPTY_PATH);
            let error = io::Error::last_os_error();
            libc::close(tree);
            if moved == 0 {
                Ok(())
            } else {
                Err(error)
            }
        }
    }
}

fn string(text: &OsStr) -> CString {
    // A name of the kernel's has no zero inside.
    CString::new(text.as_bytes()).unwrap_or_default()
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
