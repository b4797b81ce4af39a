//! System calls that name files by path. The guest's working folder is kept here; the [`Host`]
//! sees absolute paths only.

use super::calls::{EBADF, EINVAL, ENAMETOOLONG, ENOENT, ENOTDIR};
use super::files::OpenFolder;
use super::{Errno, FileTreeChange, GuestFileStatus, Host, LinkHandling, OpenFileChange, Process};

/// Bytes of a path, as Linux has it (`PATH_MAX`).
const MOST_PATH: u64 = 4096;
/// `AT_FDCWD`, `AT_SYMLINK_NOFOLLOW`, `AT_REMOVEDIR`, `AT_EMPTY_PATH`.
const AT_FDCWD: i32 = -100;
const AT_SYMLINK_NOFOLLOW: u64 = 0x100;
const AT_REMOVEDIR: u64 = 0x200;
const AT_EMPTY_PATH: u64 = 0x1000;
/// `S_IFMT` and `S_IFDIR`.
const TYPE: u32 = 0o170_000;
const FOLDER: u32 = 0o040_000;

impl<H: Host> Process<H> {
    /// The text at an address, up to its zero byte.
    fn text(&mut self, address: u64) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        for offset in 0..MOST_PATH {
            match self.memory.load::<1>(address.wrapping_add(offset))?[0] {
                0 => return Ok(text),
                byte => text.push(byte),
            }
        }
        Err(ENAMETOOLONG)
    }

    /// A path as absolute one; relative ones count from a folder's descriptor.
    fn absolute(&mut self, folder: i32, address: u64) -> Result<Vec<u8>, Errno> {
        let path = self.text(address)?;
        match path.first() {
            None => Err(ENOENT),
            Some(b'/') => Ok(path),
            Some(_) => {
                let base = match folder {
                    AT_FDCWD => &self.working_folder,
                    _ => match self.folders.get(&folder) {
                        Some(folder) => &folder.path,
                        None => return Err(self.host.status(folder).err().unwrap_or(ENOTDIR)),
                    },
                };
                Ok([base, &b"/"[..], &path].concat())
            }
        }
    }

    /// A call that names files by path; `None` for other numbers.
    pub(super) fn path_call(&mut self, number: u64, a: [u64; 6]) -> Option<Result<u64, Errno>> {
        let folder = a[0] as i32;
        Some(match number {
            17 => self.put_working_folder(a),
            34 => self.absolute(folder, a[1]).and_then(|path| {
                self.change(FileTreeChange::MakeFolder { path: &path, mode: a[2] as u32 })
            }),
            35 => self.absolute(folder, a[1]).and_then(|path| {
                self.change(match a[2] & AT_REMOVEDIR {
                    0 => FileTreeChange::RemoveFile(&path),
                    _ => FileTreeChange::RemoveFolder(&path),
                })
            }),
            36 => self.make_link(a),
            37 | 38 | 276 => self.name_again(number, a),
            45 => self.change_by_path(AT_FDCWD, a[0], 1, OpenFileChange::Size(a[1])),
            48 | 439 => self
                .absolute(folder, a[1])
                .and_then(|path| self.host.status_at(&path, LinkHandling::Follow).map(|_| 0)),
            49 => self.absolute(AT_FDCWD, a[0]).and_then(|path| self.enter_folder(path)),
            50 => match self.folders.get(&folder) {
                Some(open) => {
                    self.working_folder.clone_from(&open.path);
                    Ok(0)
                }
                None => Err(self.host.status(folder).err().unwrap_or(ENOTDIR)),
            },
            53 => self.change_by_path(folder, a[1], 0, OpenFileChange::Mode(a[2] as u32)),
            56 => self.open(a),
            78 => self.put_link_target(a),
            79 => self.status_by_path(folder, a[1], a[3]).and_then(|s| self.put_status(a[2], s)),
            88 => self.file_times(a[2]).map(OpenFileChange::Times).and_then(|times| match a[1] {
                0 => self.host.change_file(folder, times).map(|()| 0),
                path => self.change_by_path(folder, path, 0, times),
            }),
            291 => self
                .status_by_path(folder, a[1], a[2])
                .and_then(|status| self.put_extended_status(a[4], status)),
            _ => return None,
        })
    }

    fn change(&mut self, change: FileTreeChange<'_>) -> Result<u64, Errno> {
        self.host.change_tree(change).map(|()| 0)
    }

    fn put_working_folder(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let mut text = self.working_folder.clone();
        text.push(0);
        if (text.len() as u64) > a[1] {
            return Err(super::calls::ERANGE);
        }
        self.memory.write(a[0], &text)?;
        Ok(text.len() as u64)
    }

    fn enter_folder(&mut self, path: Vec<u8>) -> Result<u64, Errno> {
        let status = self.host.status_at(&path, LinkHandling::Follow)?;
        if status.mode & TYPE != FOLDER {
            return Err(ENOTDIR);
        }
        // Parts are taken as written: a link in the path is not replaced by what it leads to.
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in path.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => drop(parts.pop()),
                _ => parts.push(part),
            }
        }
        self.working_folder = [b"/", parts.join(&b'/').as_slice()].concat();
        Ok(0)
    }

    fn make_link(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let (target, path) = (self.text(a[0])?, self.absolute(a[1] as i32, a[2])?);
        self.change(FileTreeChange::MakeLink { path: &path, target: &target })
    }

    /// `linkat`, `renameat`, `renameat2`.
    fn name_again(&mut self, number: u64, a: [u64; 6]) -> Result<u64, Errno> {
        let (from, to) = (self.absolute(a[0] as i32, a[1])?, self.absolute(a[2] as i32, a[3])?);
        match number {
            37 => self.change(FileTreeChange::AddName { from: &from, to: &to }),
            276 if a[4] != 0 => Err(EINVAL),
            _ => self.change(FileTreeChange::Rename { from: &from, to: &to }),
        }
    }

    fn change_by_path(
        &mut self,
        folder: i32,
        path: u64,
        flags: u32,
        change: OpenFileChange,
    ) -> Result<u64, Errno> {
        let path = self.absolute(folder, path)?;
        let opened = self.host.open(&path, flags, 0)?;
        let changed = self.host.change_file(opened, change);
        self.host.close(opened)?;
        changed.map(|()| 0)
    }

    fn open(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let path = self.absolute(a[0] as i32, a[1])?;
        let descriptor = self.host.open(&path, a[2] as u32, a[3] as u32 & !self.umask)?;
        self.folders.remove(&descriptor);
        if self.host.status(descriptor).is_ok_and(|status| status.mode & TYPE == FOLDER) {
            self.folders.insert(descriptor, OpenFolder::new(path));
        }
        Ok(descriptor as u64)
    }

    fn put_link_target(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let path = self.absolute(a[0] as i32, a[1])?;
        let mut target = self.host.link_target(&path)?;
        target.truncate(a[3].min(MOST_PATH) as usize);
        self.memory.write(a[2], &target)?;
        Ok(target.len() as u64)
    }

    fn status_by_path(&mut self, fd: i32, at: u64, flags: u64) -> Result<GuestFileStatus, Errno> {
        if flags & AT_EMPTY_PATH != 0 && (at == 0 || self.text(at)?.is_empty()) {
            return match fd {
                AT_FDCWD => {
                    let path = self.working_folder.clone();
                    self.host.status_at(&path, LinkHandling::Follow)
                }
                ..0 => Err(EBADF),
                _ => self.host.status(fd),
            };
        }
        let path = self.absolute(fd, at)?;
        let links = match flags & AT_SYMLINK_NOFOLLOW {
            0 => LinkHandling::Follow,
            _ => LinkHandling::Keep,
        };
        self.host.status_at(&path, links)
    }
}
